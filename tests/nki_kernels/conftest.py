"""Fixtures for the tests of generated kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import trnx.backend.pipeline  # noqa: F401  its predictions choose among tilings, as for users
from trnx import simulator
from trnx.nki_kernels.generator import FusedKernel
from trnx.nki_kernels.spec import Bindings, Launch
from trnx.simulator.frontend.subset import check_subset
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program

# Tests share `launched.py`.
HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.append(HERE)


@dataclass(frozen=True)
class Region:
    """A function of canonical ATen calls as a region, with the inputs that it was made for."""

    gm: fx.GraphModule
    inputs: dict[str, torch.Tensor]

    @property
    def bindings(self) -> Bindings:
        return Bindings({name: TensorSpec.of(tensor) for name, tensor in self.inputs.items()})

    @property
    def kernel(self) -> FusedKernel:
        return FusedKernel(self.gm)

    def source(self, target: str = "trn2") -> str:
        return self.kernel.source(self.bindings, hardware(target))

    def launch(self, target: str = "trn2") -> Launch:
        return self.kernel.launch(self.bindings, hardware(target))

    def program(self, target: str = "trn2") -> Program:
        launch = self.launch(target)
        check_subset(launch.kernel)
        return simulator.trace(launch.kernel, launch.arguments, target=target)

    def run(self, target: str = "trn2") -> tuple[torch.Tensor, ...]:
        """Results in eager's form: bool for uint8, int64 for words, rank 0 for one element, dims
        in its order."""
        results = self.program(target).run(list(self.inputs.values()))
        orders = self.launch(target).result_orders or [range(e.ndim) for e in self.eager()]
        return tuple(
            _as_eager_has_it(r, e.dtype)
            .reshape([e.shape[i] for i in order])
            .permute(sorted(range(e.ndim), key=order.__getitem__))
            for r, e, order in zip(results, self.eager(), orders, strict=True)
        )

    def eager(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.kernel.reference(**self.inputs))

    def check(self, target: str = "trn2", **tolerance: float) -> None:
        """The kernel's results equal eager's."""
        for result, expected in zip(self.run(target), self.eager(), strict=True):
            torch.testing.assert_close(result, expected, equal_nan=True, **tolerance)


def _as_eager_has_it(result: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A kernel's bytes as bool, its pairs of words as int64."""
    if dtype is torch.int64:
        return result.contiguous().view(torch.int64)
    return result.bool() if dtype is torch.bool else result


def build_region(function: Callable[..., Any], *inputs: torch.Tensor) -> Region:
    """`function` of proxies calls ATen overloads and returns a tensor or a tuple of them.

    It takes as many of `inputs` as it has parameters.
    """
    gm = fx.symbolic_trace(function)
    env: dict[fx.Node, Any] = {}
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    inputs = inputs[: len(places)]
    env.update(zip(places, inputs, strict=True))
    for node in gm.graph.nodes:
        if node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = node.target(*args, **kwargs)
        if node.op == "output" and isinstance(node.args[0], fx.Node):
            node.args = ((node.args[0],),)
        elif node.op != "output":
            node.meta["val"] = env[node]
    gm.recompile()
    return Region(gm, {node.name: tensor for node, tensor in zip(places, inputs, strict=True)})


@pytest.fixture
def region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Region]:
    """`build_region`, with a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return build_region
