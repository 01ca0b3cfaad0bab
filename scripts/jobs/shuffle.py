"""A shuffle of any size without a table: a Feistel network, as format-preserving encryption has it.

The network permutes the numbers of 2 * k bits; a number that falls outside of the range goes
through it again until it is inside ("cycle walking"), which keeps it a permutation: Black and
Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), methods 2 and 3.
"""

from __future__ import annotations

import hashlib

_ROUNDS = 6


def _round(half: int, key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(half.to_bytes(8), digest_size=8, key=key).digest())


def _permute(value: int, bits: int, keys: list[bytes]) -> int:
    mask = (1 << bits) - 1
    left, right = value >> bits, value & mask
    for key in keys:
        left, right = right, left ^ (_round(right, key) & mask)
    return left << bits | right


def shuffled(place: int, size: int, seed: int, epoch: int) -> int:
    """What stands at `place` where the numbers below `size` are shuffled for an epoch."""
    keys = [f"{seed} {epoch} {number}".encode() for number in range(_ROUNDS)]
    bits = max(((size - 1).bit_length() + 1) // 2, 1)
    found = _permute(place, bits, keys)
    while found >= size:
        found = _permute(found, bits, keys)
    return found
