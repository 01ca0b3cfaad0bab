"""The buckets of sizes.

`auto`: powers of two and their 1.25 and 1.5 fold, up to LIMIT: 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20,
24, 32, ... At most a quarter of the places of a bucket is padding, but for 7, and 15 % on average
over evenly spread sizes. Larger sizes are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

# Larger sizes are exact: their kernels take long to run, and padding them long to copy.
LIMIT = 1 << 16

Buckets = Literal["auto", "exact"] | tuple[int, ...]


def auto_bucket(size: int) -> int | None:
    """The bucket of a size; None where it is exact."""
    if size < 1 or size > LIMIT:
        return None
    power = 1 << (size.bit_length() - 1)
    steps = (power, *((power * step) // 4 for step in (5, 6) if power % 4 == 0 or step == 6))
    return min(step for step in (*steps, 2 * power) if step >= size)


def bucket_of(size: int, buckets: Buckets) -> int | None:
    """The bucket of a size; None where it is exact. Of a list it is the smallest one that holds the
    size, but where that is more than twice the size, the one of `auto`."""
    if buckets == "exact":
        return None
    if not isinstance(buckets, tuple):
        return auto_bucket(size)
    found = min((one for one in buckets if one >= size), default=None)
    return auto_bucket(size) if found is not None and found > 2 * size else found


def bucketed(symbols: Mapping[Any, int], buckets: Buckets) -> dict[Any, int] | None:
    """The bucket of each symbol; None where one of them has none, so that all are exact."""
    found = {symbol: bucket_of(size, buckets) for symbol, size in symbols.items()}
    known = {symbol: size for symbol, size in found.items() if size is not None}
    return known if len(known) == len(found) else None


def parse_buckets(given: object) -> Buckets | None:
    """The option's value: "auto", "exact", a list of sizes, or their text "64,128"; None for
    anything else."""
    if isinstance(given, str):
        if given == "auto" or given == "exact":
            return given  # type: ignore[return-value]  # narrowed by the comparison
        given = [int(part) if part.strip().isdecimal() else part for part in given.split(",")]
    if not isinstance(given, Sequence) or not given:
        return None
    if not all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in given):
        return None
    return tuple(sorted(set(given)))
