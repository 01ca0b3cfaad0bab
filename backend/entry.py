"""The entry point: what `torch.compile(model, backend="trnx")` calls for every captured graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from trnx.backend.autograd import split_joint
from trnx.backend.compiler import GraphCompiler, next_frame_name
from trnx.backend.decompositions import decomposition_table
from trnx.backend.errors import UnsupportedDeviceError, UnsupportedModeError
from trnx.backend.foreach_decompositions import unless_static
from trnx.backend.garbage import new_objects_only
from trnx.backend.neuron.choice import Choice, choose_runner
from trnx.backend.options import Options, make_options
from trnx.backend.pipeline import before_autograd
from trnx.backend.runners import NeuronRunner
from trnx.backend.torch_internals import (
    bound_fake_results,
    compile_with_autograd,
    let_threads_load,
)
from trnx.backend.versions import check_versions
from trnx.fx_passes.expand_lists import COPY, expand_lists
from trnx.fx_passes.metadata import EXAMPLE_VALUE
from trnx.fx_passes.source import source_line
from trnx.nki_kernels.registry import kernels

# Of the graphs before, seven kilobytes each: while it compiles, a graph may have any number.
FAKE_RESULTS = 512

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
    return compile_captured(gm, example_inputs, chosen, choose_runner(chosen.runner, chosen.target))


def compile_captured(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Options, choice: Choice | None
) -> Callable[..., Any]:
    """Compile one captured graph; without a choice it is planned and reported, and run in eager."""
    check_devices(gm, example_inputs, _wanted_device(gm, example_inputs, choice))
    bound_fake_results(FAKE_RESULTS)
    with new_objects_only():
        table = decomposition_table(kernels())
        expand = partial(expand_lists, table=table)
        compiler = GraphCompiler(options, choice, next_frame_name(), expand)
        return compile_with_autograd(
            before_autograd(gm),
            example_inputs,
            forward=compiler.compiler("forward"),
            backward=compiler.compiler("backward"),
            inference=compiler.compiler("inference"),
            partition=partial(split_joint, expand=expand),
            decompositions=table | {COPY: unless_static(table[COPY])},
        )


def _wanted_device(gm: fx.GraphModule, example_inputs: Sequence[Any], choice: Choice | None) -> str:
    """Where the tensors of a graph have to be: the runner's device; what is only explained may be
    on either."""
    if choice is not None:
        return "neuron" if isinstance(choice.runner, NeuronRunner) else "cpu"
    tensors = (value for _, value, _ in _values(gm, example_inputs))
    found = {t.device.type for t in tensors if isinstance(t, torch.Tensor) and t.ndim}
    return "neuron" if "neuron" in found else "cpu"


def _values(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Iterator[tuple[str, Any, str]]:
    """What each value of Dynamo's graph is called, the value, and the user's line."""
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    for name, value in zip(names, example_inputs, strict=False):
        yield f"input {name}", value, ""
    for name, value in (*gm.named_parameters(), *gm.named_buffers()):
        yield f"attribute {name}", value, ""
    for node in gm.graph.nodes:
        yield f"value {node.name}", node.meta.get(EXAMPLE_VALUE), source_line(node)


def check_devices(gm: fx.GraphModule, example_inputs: Sequence[Any], wanted: str = "cpu") -> None:
    """Raises UnsupportedDeviceError for the first tensor that is not on the device `wanted`.

    A graph of the device may have numbers (tensors without dimensions) in host memory.
    """
    for what, value, line in _values(gm, example_inputs):
        if not isinstance(value, torch.Tensor) or value.device.type == wanted:
            continue
        if wanted == "neuron" and value.device.type == "cpu" and value.ndim == 0:
            continue
        where = f" at {line}" if line else ""
        if wanted == "neuron":
            raise UnsupportedDeviceError(
                f"{what}{where} is on device {str(value.device)!r}, and the runner is 'neuron': "
                "move the model and its inputs with .to('neuron'), or compile with "
                "options={'runner': 'simulator'}"
            )
        raise UnsupportedDeviceError(
            f"{what}{where} is on device {str(value.device)!r}; trnx compiles models in host "
            "memory: move the model and its inputs with .to('cpu')"
        )
