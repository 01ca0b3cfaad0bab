"""Random weights, drawn part by part: each rank has one part of the model whole at a time.

The numbers of a part follow from the seed and the part's path, so they are the same however the
model is divided over ranks.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trnx.jobs import models
from trnx.jobs.errors import ModelError
from trnx.jobs.weights import copy_part, make_weights, parameters_of_base, without_weights


def undrawn(config: Any) -> tuple[Any, dict[str, nn.Module]]:
    """(the model with parameters on the meta device, copies of its parts for `draw_weights`).

    The copies are made before adapters, sharding and compilation change the model. Raises
    ModelError.
    """
    with without_weights():
        model = models.make_model(config)
    return model, {name: copy.deepcopy(part) for name, part in _units(model, config).items()}


def build_model(config: Any, seed: int) -> Any:
    """The model in float32, weights drawn from `seed`. Raises ModelError."""
    model, units = undrawn(config)
    make_weights(model, torch.device("cpu"))
    draw_weights(parameters_of_base(model), model, units, seed)
    return model


def _units(model: nn.Module, config: Any) -> dict[str, nn.Module]:
    """Blocks, last norm, head, and every other module with parameters of its own."""
    found = models.parts(model, config)
    for name, module in model.named_modules():
        inside = any(name == path or name.startswith(f"{path}.") for path in found)
        if not inside and next(module.parameters(recurse=False), None) is not None:
            found[name] = module
    return found


@torch.no_grad()
def draw_weights(
    wanted: Mapping[str, torch.Tensor], model: Any, units: Mapping[str, nn.Module], seed: int
) -> None:
    """Fill parameters, divided or not, with what transformers draws for them.

    `wanted`: name in the model as it was made -> parameter, tied ones under one name; `model` knows
    how its kind is drawn. Raises ModelError for parameters that are drawn from nothing.
    """
    for path, unit in units.items():
        torch.manual_seed(_seed_of(seed, path))
        real = copy.deepcopy(unit).to_empty(device="cpu")
        for value in real.parameters():
            value.fill_(torch.nan)
        real.apply(_reset)
        real.apply(model._init_weights)
        for name, value in real.named_parameters():
            if bool(value.isnan().any()):
                raise ModelError(f"{path}.{name}: transformers draws no weights for it")
            if (target := wanted.get(f"{path}.{name}")) is not None:
                copy_part(target, value)


def _reset(module: nn.Module) -> None:
    """What the module draws where transformers has no rule of its own."""
    reset = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()


def _seed_of(seed: int, path: str) -> int:
    digest = hashlib.sha256(f"{seed} {path}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
