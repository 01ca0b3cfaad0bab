"""The order of instructions between phases: none waits behind one that waits itself."""

from __future__ import annotations

import torch

from trnx.nki_kernels.generator.chain_order import in_chain_order
from trnx.nki_kernels.generator.instruction import Instruction, Tile
from trnx.nki_kernels.generator.ir import Value


def value(name: str) -> Value:
    return Value("alu", name, (), torch.float32, frozenset())


def computes(dst: Value, *operands: Value) -> Instruction:
    arguments = tuple((f"data{i}", Tile(x, None)) for i, x in enumerate(operands))
    return Instruction("tensor_tensor", dst, arguments)


def test_what_waits_for_nothing_fills_the_gaps_of_a_chain() -> None:
    x, a, b, c, d, end = map(value, ["x", "a", "b", "c", "d", "end"])
    chain = [computes(a, x), computes(b, a), computes(c, b)]
    filler, last = computes(d, x), computes(end, c, d)
    assert in_chain_order([*chain, filler, last]) == [chain[0], filler, *chain[1:], last]


def test_a_tile_that_is_written_twice_keeps_the_order_of_its_writes() -> None:
    x, tile, other, end = map(value, ["x", "tile", "other", "end"])
    filled = Instruction("memset", tile, (("value", "0.0"),))
    copied = computes(tile, x)
    overwritten = computes(x, other)
    given = [filled, copied, overwritten, computes(end, tile, x)]
    assert in_chain_order(given) == given


def test_every_instruction_is_kept_once() -> None:
    values = [value(str(i)) for i in range(12)]
    given = [computes(y, *values[max(0, i - 3) : i : 2]) for i, y in enumerate(values)]
    found = in_chain_order(given)
    assert sorted(map(id, found)) == sorted(map(id, given))
    made: set[Value] = set()
    for instruction in found:
        assert made.issuperset(instruction.reads())
        made.update(instruction.writes())
