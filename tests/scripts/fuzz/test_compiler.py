"""The fuzzer of the compiler: some programs, and that it finds and makes small what is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_programs import layer_builder
from torch_programs.builder import LARGEST_BETWEEN, build
from torch_programs.differential import check
from torch_programs.layers import Role
from torch_programs.program import DTYPES, Input, Line, Program
from torch_programs.shrink import shrink

Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]


def program(*lines: str, outputs: tuple[str, ...] = ("v1",)) -> Program:
    x = Input("x0", ("S0", 8), "F32", "dense", 1)
    texts = [Line(text, text.partition(" = ")[0], ("x0",)) for text in lines]
    return Program((x,), tuple(texts), outputs, ({"S0": 129},), {"select": "legal"})


def wrong(change: Callable[[Any], Any]) -> Backend:
    """A Dynamo backend whose first result is changed."""

    def backend(graph: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            first, *others = graph(*arguments)
            return [change(first), *others]

        return run

    return backend


def test_programs_agree() -> None:
    found = {number: check(build(20261123, number)) for number in range(10)}
    assert {number: one for number, one in found.items() if one.is_failure} == {}
    assert sum(one.status == "agreed" for one in found.values()) >= 8


@pytest.mark.slow
def test_many_programs_agree() -> None:
    found = {number: check(build(7, number)) for number in range(400)}
    assert {number: one for number, one in found.items() if one.is_failure} == {}


def test_programs_of_layers_agree() -> None:
    found = {number: check(layer_builder.build(20261130, number)) for number in range(6)}
    assert {number: one for number, one in found.items() if one.is_failure} == {}
    assert sum(one.status == "agreed" for one in found.values()) >= 4


def test_programs_of_layers_are_of_every_kind() -> None:
    programs = [layer_builder.build(5, number) for number in range(100)]
    assert programs[:5] == [layer_builder.build(5, number) for number in range(5)]
    assert any(one.has_gradients for one in programs)
    assert any(one.is_dynamic for one in programs)
    assert {one.context for one in programs} >= {"", "torch.no_grad()"}
    lines = [line for one in programs for line in one.lines]
    assert any(line.gives is None for line in lines)
    # One value in two roles.
    assert any(
        re.search(r"F.linear\((\w+), \1\b|attention\((\w+), \2, \2", line.text) for line in lines
    )
    for number, one in enumerate(programs):
        places = [
            x
            for x, made in zip(one.arguments(one.dims[0], DTYPES), one.inputs, strict=True)
            if made.below
        ]
        assert all(int(x.min()) >= 0 and int(x.max()) < 200 for x in places), number


def test_a_role_takes_what_has_its_sizes() -> None:
    assert Role.parse("*i").bind((2, 3, 4), {"i": 4}) == {"i": 4}
    assert Role.parse("*i").bind((2, 3, 4), {"i": 5}) is None
    assert Role.parse("oi").bind((3, 4), {"i": 4}) == {"i": 4, "o": 3}
    assert Role.parse("!oi").bind((2, 3, 4), {}) is None
    assert Role.parse("oo").bind((3, 4), {}) is None
    assert Role.parse("c1").bind((3, 1), {}) == {"c": 3}


def test_equal_seeds_make_equal_programs() -> None:
    assert [build(3, number) for number in range(20)] == [build(3, number) for number in range(20)]
    assert build(3, 0) != build(4, 0)


def test_other_sizes_fit_the_memory() -> None:
    program = build(41, 33)  # an argument with four dimensions drawn again, each up to 1025
    for dims in program.dims:
        shapes = [made.shape(dims) for made in program.inputs]
        assert max(map(math.prod, shapes)) <= LARGEST_BETWEEN


def test_programs_are_of_every_kind() -> None:
    programs = [build(5, number) for number in range(200)]
    assert any(one.has_gradients for one in programs)
    assert any(one.is_dynamic for one in programs)
    assert any(line.gives is None for one in programs for line in one.lines)
    assert {made.layout for one in programs for made in one.inputs} >= {"transposed", "expanded"}
    assert {made.dtype for one in programs for made in one.inputs} >= {"BF16", "I64", "BOOL"}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda x: x + 1e-3, "values"),
        (lambda x: x.double(), "dtype"),
        (lambda x: x[:1], "shape"),
        (lambda x: x.t().contiguous().t(), "strides"),
    ],
)
def test_a_wrong_backend_is_found(change: Callable[[Any], Any], status: str) -> None:
    assert check(program("v1 = torch.exp(x0)"), wrong(change)).status == status


def test_a_copy_in_place_of_a_view_is_found() -> None:
    a_view = program("v1 = x0.t()")
    assert check(a_view, "eager").status == "agreed"
    torch._dynamo.reset()
    copies = wrong(lambda x: x.clone())
    assert check(a_view, copies).status == "aliasing"


def test_a_program_is_made_small() -> None:
    long = program("v0 = torch.exp(x0)", "v1 = torch.tanh(x0)", "v2 = x0 * 2", outputs=("v0", "v1"))
    found = shrink(long, lambda one: "v1" in one.outputs)
    assert [line.gives for line in found.lines] == ["v1"]
    assert found.outputs == ("v1",)
