"""`trnx.profile`: the predicted time on the chip of a kernel, or of a compiled model.

    trnx.profile(kernel, TensorSpec.dense((128, 4096), torch.bfloat16))       -> Profile
    trnx.profile(torch.compile(model, backend="trnx"), x, target="trn1")      -> ModelProfile

A module, and whatever `torch.compile` returned, is a model: it is compiled anew for `target` and
runs once in eager, as in `trnx.explain`, so that Dynamo captures what a real call would. Anything
else is an NKI kernel, of which nothing is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from trnx.backend.errors import ExampleError
from trnx.backend.explain import explain, options_of
from trnx.backend.model_profile import ModelProfile, model_profile
from trnx.backend.options import Options
from trnx.backend.torch_internals import compiled_with
from trnx.simulator.frontend.options import Grid
from trnx.simulator.frontend.profiling import profile as profile_kernel
from trnx.simulator.hardware import DEFAULT_TARGET, hardware
from trnx.simulator.timing.profile import Profile


def profile(
    function: Any,
    *args: Any,
    target: str | None = None,
    grid: Grid = None,
    options: Mapping[str, Any] | Options | None = None,
    **kwargs: Any,
) -> Profile | ModelProfile:
    """The prediction for `function(*args, **kwargs)` on `target` (trn2 where nothing says else).

    A kernel takes positional arguments: tensors, TensorSpecs or constants; `grid` is its launch
    grid. A model takes its own arguments; `options` are those of the backend, laid over those that
    it was compiled with. Raises what tracing the kernel, or explaining the model, raises.
    """
    compiled = compiled_with(function)
    if compiled is None and not isinstance(function, torch.nn.Module):
        if kwargs or options is not None:
            given = ", ".join([*kwargs, *(["options"] if options is not None else [])])
            raise ExampleError(
                f"a kernel is profiled with positional arguments, got {given}; a function that is "
                "no kernel needs torch.compile(function, backend='trnx') around it"
            )
        return profile_kernel(function, *args, target=target or DEFAULT_TARGET, grid=grid)
    chosen = options_of(compiled, options)
    if target is not None:
        chosen = replace(chosen, target=hardware(target).target)
    explanation = explain(function, *args, options=chosen, **kwargs)
    name = _name(function if compiled is None else compiled.function)
    return model_profile(name, chosen.target, explanation.reports)


def _name(model: Any) -> str:
    return getattr(model, "__name__", type(model).__name__)
