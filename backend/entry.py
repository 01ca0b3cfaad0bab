"""The entry point: what `torch.compile(model, backend="trnx")` calls for every captured graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from trnx.backend.autograd import split_joint
from trnx.backend.compiler import GraphCompiler, next_frame_name
from trnx.backend.decompositions import decomposition_table
from trnx.backend.errors import UnsupportedDeviceError, UnsupportedModeError
from trnx.backend.options import Options, make_options
from trnx.backend.pipeline import before_autograd
from trnx.backend.runners import Runner, make_runner
from trnx.backend.torch_internals import compile_with_autograd, let_threads_load
from trnx.backend.versions import check_versions
from trnx.fx_passes.metadata import EXAMPLE_VALUE
from trnx.fx_passes.source import source_line
from trnx.nki_kernels.registry import kernels

# The name in pyproject.toml.
let_threads_load("trnx")


def trnx(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | Options | None = None,
) -> Callable[..., Any]:
    """Compile one captured graph; see `Options` for `options`.

    Raises UnsupportedVersionError, UnsupportedModeError, OptionError or UnsupportedDeviceError.
    Dynamo wraps them in BackendCompilerFailed, whose message shows them.
    """
    check_versions()
    if mode not in (None, "default"):
        raise UnsupportedModeError(mode)
    chosen = make_options(options)
    return compile_captured(gm, example_inputs, chosen, make_runner(chosen.runner))


def compile_captured(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Options, runner: Runner | None
) -> Callable[..., Any]:
    """Compile one captured graph; without a runner it is planned and reported, and run in eager."""
    check_devices(gm, example_inputs)
    compiler = GraphCompiler(options, runner, next_frame_name())
    return compile_with_autograd(
        before_autograd(gm),
        example_inputs,
        forward=compiler.compiler("forward"),
        backward=compiler.compiler("backward"),
        inference=compiler.compiler("inference"),
        partition=split_joint,
        decompositions=decomposition_table(kernels()),
    )


def check_devices(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Raises UnsupportedDeviceError for the first tensor that is not in host memory."""
    placeholders = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    found: list[tuple[str, Any, str]] = [
        (f"input {name}", value, "")
        for name, value in zip(placeholders, example_inputs, strict=False)
    ]
    found += [(f"attribute {name}", value, "") for name, value in gm.named_parameters()]
    found += [(f"attribute {name}", value, "") for name, value in gm.named_buffers()]
    found += [
        (f"value {node.name}", node.meta.get(EXAMPLE_VALUE), source_line(node))
        for node in gm.graph.nodes
    ]
    for what, value, line in found:
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            where = f" at {line}" if line else ""
            raise UnsupportedDeviceError(
                f"{what}{where} is on device {str(value.device)!r}; trnx compiles models in host "
                "memory: move the model and its inputs with .to('cpu')"
            )
