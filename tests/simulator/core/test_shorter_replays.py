"""Copies in several steps that a replay leaves out, and results that nobody reads."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import torch

from trnx.simulator import TensorSpec, load_module, trace
from trnx.simulator.language.operators import functions
from trnx.simulator.memory.storage import Step
from trnx.simulator.program.copy_elision import elide_copies
from trnx.simulator.program.dead_steps import write_in_place
from trnx.simulator.program.step_effects import EffectReader


def _reader(*own: torch.Tensor) -> EffectReader:
    return EffectReader([], {one.untyped_storage().data_ptr(): one.nbytes for one in own})


def _args(step: Step) -> tuple[torch.Tensor, ...]:
    assert isinstance(step, functools.partial)
    return step.args


def _run(steps: Sequence[Step], out: torch.Tensor) -> torch.Tensor:
    out.fill_(-1.0)
    for step in steps:
        step()
    return out.clone()


def test_a_copy_by_an_operator_is_left_out() -> None:
    x, weight = torch.randn(8, 16), torch.randn(16, 4)
    tile, out = torch.zeros(8, 16), torch.zeros(8, 4)
    steps: list[Step] = [
        functools.partial(functions.copy, x, out=tile),
        functools.partial(torch.mm, tile, weight, out=out),
    ]
    (left,) = elide_copies(steps, _reader(tile, out), 0)
    assert _args(left)[0].data_ptr() == x.data_ptr()
    assert torch.equal(_run([left], out), _run(steps, out))


def test_an_operator_that_converts_is_no_copy() -> None:
    x, weight = torch.randn(8, 16).bfloat16(), torch.randn(16, 4)
    tile, out = torch.zeros(8, 16), torch.zeros(8, 4)
    steps: list[Step] = [
        functools.partial(functions.copy, x, out=tile),
        functools.partial(torch.mm, tile, weight, out=out),
    ]
    assert len(elide_copies(steps, _reader(tile, out), 0)) == 2


def test_a_part_of_a_tile_is_read_where_it_was_first() -> None:
    """Two heads turned at once were in two places; each of them was in one."""
    keys, queries = torch.randn(4, 24, 8), torch.randn(4, 3, 8)
    tile, turned, out = torch.zeros(24, 4, 8), torch.zeros(2, 16, 24), torch.zeros(4, 3, 24)
    steps: list[Step] = [functools.partial(tile.copy_, keys.transpose(0, 1))]
    for pair in range(2):
        both = tile.view(24, 32)[:, 16 * pair : 16 * pair + 16]
        steps.append(functools.partial(turned[pair].copy_, both.t()))
    for head in range(4):
        factor = turned.view(4, 8, 24)[head]
        steps.append(functools.partial(torch.mm, queries[head], factor, out=out[head]))
    left = elide_copies(steps, _reader(tile, turned, out), 0)
    assert [_args(step)[1].data_ptr() for step in left] == [key.data_ptr() for key in keys]
    assert torch.allclose(_run(left, out), _run(steps, out), rtol=1e-6, atol=1e-6)


def test_a_part_of_a_tile_whose_source_has_changed_is_read_there() -> None:
    keys, queries = torch.randn(2, 24, 8), torch.randn(2, 3, 8)
    tile, turned, out = torch.zeros(24, 2, 8), torch.zeros(16, 24), torch.zeros(2, 3, 24)
    start = keys.clone()
    steps: list[Step] = [
        functools.partial(keys.copy_, start),
        functools.partial(tile.copy_, keys.transpose(0, 1)),
        functools.partial(turned.copy_, tile.view(24, 16).t()),
        functools.partial(keys.zero_),
        *(
            functools.partial(torch.mm, queries[i], turned[8 * i : 8 * i + 8], out=out[i])
            for i in range(2)
        ),
    ]
    left = elide_copies(steps, _reader(tile, turned, out), 0)
    assert torch.allclose(_run(left, out), _run(steps, out), rtol=1e-6, atol=1e-6)


def test_a_copy_whose_place_is_overwritten_in_parts_is_left_out() -> None:
    x, other = torch.randn(2, 48), torch.randn(2, 48)
    tile, total, out = torch.zeros(2, 48), torch.zeros(2, 48), torch.zeros(2, 48)

    def halves(ends: Sequence[int]) -> list[Step]:
        parts = [slice(*pair) for pair in itertools.pairwise(ends)]
        return [
            functools.partial(tile.copy_, x),
            functools.partial(torch.add, tile, other, out=total),
            *(
                functools.partial(torch.add, total[:, p], other[:, p], out=tile[:, p])
                for p in parts
            ),
            functools.partial(torch.neg, tile, out=out),
        ]

    reader = functools.partial(_reader, tile, total)
    steps = halves((0, 32, 48))
    left = elide_copies(steps, reader(), 0)
    assert len(left) == len(steps) - 1
    assert torch.equal(_run(left, out), _run(steps, out))
    # A gap, and the same part twice.
    for ends in ((0, 32, 40), (0, 24, 24)):
        assert len(elide_copies(halves(ends), reader(), 0)) == 5
    twice = [*halves((0, 24)), *halves((0, 24))[2:]]
    assert len(elide_copies(twice, reader(), 0)) == len(twice)


def test_a_result_goes_to_its_place_through_a_view_of_another_shape() -> None:
    x = torch.randn(1, 3, 8)
    tile, out = torch.zeros(1, 3, 8), torch.zeros(3, 8)
    place = functools.partial(out.copy_, tile[0])
    steps: list[Step] = [functools.partial(torch.neg, x, out=tile), place]
    (left,) = write_in_place(steps, _reader(tile, out), 0)
    assert torch.equal(_run([left], out), -x[0])


def test_results_that_nobody_reads_cost_no_steps() -> None:
    kernels = load_module(Path(__file__).with_name("elision_kernels.py"))
    x = torch.randn(16, 32)
    program = trace(kernels.twice_and_square, [TensorSpec.of(x)])
    # The recorded steps are those of whoever reads everything.
    assert program.without(frozenset({1})) is program
    program.shorten()
    first, second = program.without(frozenset({1})), program.without(frozenset({0}))
    assert program.without(frozenset()) is program
    assert program.without(frozenset({1})) is first
    assert max(len(first.steps), len(second.steps)) < len(program.steps)
    for one in (first, first.replica()):
        assert torch.equal(one.run([x])[0], 2 * x)
    assert torch.equal(second.run([x])[1], x * x)
    assert all(torch.equal(*pair) for pair in zip(program.run([x]), (2 * x, x * x), strict=True))
