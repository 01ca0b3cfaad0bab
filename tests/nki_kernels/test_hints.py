"""One number for a symbolic one, whoever asks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from trnx.fx_passes.match import bindings_spec
from trnx.fx_passes.region import KernelMatch
from trnx.nki_kernels.generator.lower import specs_of_metadata
from trnx.nki_kernels.hints import UNKNOWN_SIZE, hint, hint_int, hinted, product
from trnx.nki_kernels.registry import kernels
from trnx.simulator.memory.tensor_spec import TensorSpec


@pytest.fixture
def mode() -> FakeTensorMode:
    return FakeTensorMode(shape_env=ShapeEnv())


def of_data(mode: FakeTensorMode) -> Any:
    """A size that only data tells."""
    assert mode.shape_env is not None
    return mode.shape_env.create_unbacked_symint()


def test_a_size_that_depends_on_data_is_one_number_everywhere(mode: FakeTensorMode) -> None:
    size = of_data(mode)
    with mode:
        value = torch.empty(size, 3)
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = value
    spec = TensorSpec.dense((UNKNOWN_SIZE, 3), torch.float32)
    assert hinted(value) == spec
    assert specs_of_metadata([node]) == {node: spec}
    match = KernelMatch(next(iter(kernels())), {"x": node, "sizes": [node, 4]})
    assert dict(bindings_spec(match)) == {"x": spec, "sizes": [spec, 4]}
    assert hint_int(size) == UNKNOWN_SIZE
    assert product(value.shape) == 3 * UNKNOWN_SIZE
    assert hint([size, 2 * size, True, None]) == [UNKNOWN_SIZE, 2 * UNKNOWN_SIZE, True, None]


def test_numbers_without_a_hint(mode: FakeTensorMode) -> None:
    assert mode.shape_env is not None
    assert hint(mode.shape_env.create_unbacked_symfloat()) == 1.0
    assert hint(mode.shape_env.create_unbacked_symbool()) is True


def test_specs_of_tensors_with_and_without_strides() -> None:
    x = torch.empty(4, 6)
    assert hinted(x.t()) == TensorSpec((6, 4), torch.float32, (1, 6))
    assert hinted(x.to_sparse()) == TensorSpec.dense((4, 6), torch.float32)
    assert hinted(torch.empty(0, 2)) == TensorSpec.dense((0, 2), torch.float32)
    assert product(()) == 1
