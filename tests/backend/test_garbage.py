"""What Python's collector visits while trnx compiles."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from trnx.backend.compiler import GraphCompiler
from trnx.backend.garbage import THRESHOLDS, new_objects_only


@pytest.fixture
def nothing_frozen() -> Any:
    assert gc.get_freeze_count() == 0
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_what_was_there_is_not_visited_inside() -> None:
    before = [[]]
    with new_objects_only():
        inside = [[]]
        tracked = {id(one) for one in gc.get_objects()}
        assert id(inside) in tracked
        assert id(before) not in tracked
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("nothing_frozen")
def test_garbage_made_inside_is_collected_inside() -> None:
    class Node:
        alive = 0

        def __init__(self) -> None:
            Node.alive += 1
            self.itself = self

        def __del__(self) -> None:
            Node.alive -= 1

    with new_objects_only():
        Node()
        assert Node.alive == 1
        gc.collect()
        assert Node.alive == 0


@pytest.mark.usefixtures("nothing_frozen")
def test_an_error_and_a_block_within_leave_nothing_frozen() -> None:
    def fail() -> None:
        with new_objects_only():
            with new_objects_only():
                pass
            assert gc.get_freeze_count() > 0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("nothing_frozen")
def test_what_the_user_has_frozen_stays_frozen() -> None:
    gc.freeze()
    with new_objects_only():
        pass
    assert gc.get_freeze_count() > 0


def test_collections_are_rarer_inside_also_where_blocks_overlap() -> None:
    before = gc.get_threshold()
    assert before[0] < THRESHOLDS[0]
    first, second = new_objects_only(), new_objects_only()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == THRESHOLDS
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


@pytest.mark.parametrize("users", [(0, 10, 10), (50_000, 5, 5)])
def test_collections_that_the_user_made_rarer_stay_so(users: tuple[int, int, int]) -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(*users)
        with new_objects_only():
            assert gc.get_threshold() == users
        assert gc.get_threshold() == users
    finally:
        gc.set_threshold(*before)


def test_thresholds_that_are_set_inside_stay() -> None:
    before = gc.get_threshold()
    try:
        with new_objects_only():
            gc.set_threshold(123, 4, 5)
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*before)


@pytest.mark.usefixtures("nothing_frozen")
def test_graphs_compile_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = []
    original = GraphCompiler.compile

    def noting(self: GraphCompiler, *arguments: Any) -> Any:
        frozen.append(gc.get_freeze_count())
        return original(self, *arguments)

    monkeypatch.setattr(GraphCompiler, "compile", noting)
    torch._dynamo.reset()
    x = torch.randn(3, 5, requires_grad=True)
    torch.compile(lambda x: torch.tanh(x) + 1, backend="trnx")(x).sum().backward()
    assert len(frozen) == 2
    assert min(frozen) > 0
    assert gc.get_freeze_count() == 0
