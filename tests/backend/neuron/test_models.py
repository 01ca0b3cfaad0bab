"""Models through the runner `neuron`: equal eager, and one graph with all of the plan's regions."""

from __future__ import annotations

from typing import Any

import pytest

# What copies tensors to and from the device, and what AOTAutograd writes back into inputs.
_OUTSIDE = {
    "aten._copy_from.default",
    "aten.empty_strided.default",
    "aten.empty.memory_format",
    "aten.zero_.default",
    "aten.fill_.Scalar",
    "aten.arange.start_out",
    "aten.as_strided.default",
    "aten.view.default",
}


@pytest.mark.parametrize(
    ("model", "kinds", "runs", "tolerance", "kernels"),
    [
        ("demo", ["inference"], [2], 1e-5, {"linear", "self_attention", "layer_norm", "embedding"}),
        ("gpt2", ["inference"], [2], 1e-5, {"linear", "sdpa", "layer_norm", "embedding"}),
        ("loaded", ["inference"], [2], 1e-5, {"linear", "sdpa", "layer_norm", "embedding"}),
        ("llama", ["inference", "inference"], [1, 2], 1e-5, {"linear", "sdpa", "embedding"}),
        ("resnet", ["inference"], [2], 1e-5, {"linear"}),
        (
            "bert_step",
            ["forward", "backward"],
            [2, 2],
            1e-4,
            {"linear", "sdpa", "sdpa_backward", "layer_norm_backward", "column_sum"},
        ),
    ],
)
def test_one_graph_equals_eager(
    on_fakes: Any,
    model: str,
    kinds: list[str],
    runs: list[int],
    tolerance: float,
    kernels: set[str],
) -> None:
    found = on_fakes(model)
    assert max(found["gaps"]) < tolerance
    assert found["runners"] == ["neuron"]
    assert found["kinds"] == kinds
    # One graph handed over for each captured one, compiled once, and run at every call.
    assert found["handed"] == len(kinds)
    assert found["compiled"] == [1] * len(kinds)
    assert found["runs"] == runs
    # As many NKI ops as regions, named after their kernels.
    assert found["ops"] == found["regions"]
    assert found["named"] == found["kernels"]
    assert kernels <= set(found["kernels"])
    # Nothing between them in host memory, or op by op.
    assert found["host_tensors"] == []
    assert found["composites"] == []
    assert set(found["outside"]) <= _OUTSIDE
