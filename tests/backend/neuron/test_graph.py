"""The graph that is handed over, at its edges: sizes, layouts, dtypes, aliasing, composites."""

from __future__ import annotations

import re
from typing import Any

import pytest

EDGES = [
    "1 rows", "127 rows", "128 rows", "129 rows", "no rows", "no rows in a product", "bfloat16",
    "transposed weight", "transposed rows", "every second column", "expanded", "channels last",
    "copied to channels last",
    "bool in", "bool out", "int64 in", "int64 out", "a number", "a number in", "two results",
    "an input returned", "a view returned", "a result twice", "a constant",
    "a mask made in the graph", "a view alone",
]  # fmt: skip


@pytest.mark.parametrize("select", ["legal", "none"])
@pytest.mark.parametrize("name", EDGES)
def test_like_eager(on_fakes: Any, name: str, select: str) -> None:
    found = on_fakes("edge", name, select)
    assert set(found["differences"]) == {""}
    assert found["handed"] == 1
    assert found["runs"] == [2]
    if name not in ("no rows", "no rows in a product"):
        assert found["ops"] == found["regions"]
    if select == "none":
        assert found["ops"] == [0]


@pytest.mark.parametrize("name", ["sdpa", "grouped", "rms_norm"])
def test_composites_without_a_kernel_are_aten(on_fakes: Any, name: str) -> None:
    found = on_fakes("composite", name)
    assert found == {"difference": "", "composites": [], "ops": [0]}


def test_gradients_of_composites(on_fakes: Any) -> None:
    assert on_fakes("gradients_of_composites") == [""]


def test_a_recurrent_layer_without_a_kernel(on_fakes: Any) -> None:
    assert on_fakes("recurrent_layer") == [""] * 5


def test_a_saved_tensor_with_other_strides_is_copied(on_fakes: Any) -> None:
    assert on_fakes("hooks", "strides") == [""]


def test_a_saved_tensor_of_another_dtype_is_refused(on_fakes: Any) -> None:
    [message] = on_fakes("hooks", "dtype")
    assert "is torch.bfloat16" in message
    assert "keep dtype and shape" in message


def test_lists_are_written_to(on_fakes: Any) -> None:
    assert on_fakes("lists") == {"differences": [""]}


def test_writes_to_inputs(on_fakes: Any) -> None:
    assert on_fakes("mutation")["differences"] == ["", "", "", ""]


# Without `dynamic=True` the first size has a capture of its own, and later ones share another.
@pytest.mark.parametrize(("dynamic", "runs"), [(True, [1, 2, 2]), (None, [1, 1, 1, 2])])
def test_each_size_has_a_graph_of_numbers(
    on_fakes: Any, dynamic: bool | None, runs: list[int]
) -> None:
    found = on_fakes("sizes", dynamic)
    assert found["differences"] == [""] * 5
    assert found["runs"] == runs
    assert found["ops"] == [1] * len(runs)


@pytest.mark.parametrize(
    ("name", "graphs"), [("float", 1), ("int", 1), ("bound", 1), ("in a call", 3)]
)
def test_a_changing_number_is_an_input(on_fakes: Any, name: str, graphs: int) -> None:
    assert on_fakes("numbers", name) == {"differences": ["", "", ""], "handed": graphs}


def test_a_graph_may_not_fall_back_to_eager_in_silence(on_fakes: Any) -> None:
    assert on_fakes("options_handed") == [{"fallback_execution": False}]


def test_equal_layers_share_an_op_that_writes_to_nothing(on_fakes: Any) -> None:
    found = on_fakes("equal_layers")
    assert len(set(found["ops"])) == 1
    assert re.fullmatch(r"linear_[0-9a-f]{12}", found["ops"][0])
    assert found["nodes"] == ["linear", "linear_1", "linear_2"]
    [schema] = found["schemas"]
    assert schema.endswith("(Tensor x0, Tensor x1, Tensor x2) -> Tensor")
    assert found["lines"] == [f"module {i} (Linear)" for i in range(3)]


def test_collectives_stay_in_the_graph(on_fakes: Any) -> None:
    found = on_fakes("collectives")
    wait = "_c10d_functional.wait_tensor.default"
    assert found["between"] == ["_c10d_functional.all_reduce.default", wait]
    assert found["collectives"] == found["between"][:1]
    assert found["engines"].count("collective") == 1
    assert found["engines"].count("nki") == found["ops"] >= 2
    assert found["runs"] == 1
    assert found["fallbacks"] == []
