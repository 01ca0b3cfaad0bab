"""Weights of a folder as `save_pretrained` writes it: `*.safetensors`, read tensor by tensor.

A model that gets its weights from files is made without any (`without_weights`), divided over the
ranks, and then given memory for what this rank keeps (`make_weights`); of each tensor a rank reads
its own part. Nothing is run: safetensors holds numbers alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trnx.backend.torch_internals import local_part
from trnx.jobs.adapters import base_name
from trnx.jobs.errors import ModelError


@contextmanager
def without_weights() -> Iterator[None]:
    """Parameters made inside are on the meta device; buffers, which no file has, are real."""
    register = nn.Module.register_parameter

    def on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and not param.is_meta:  # a tied one stays the same object
            self._parameters[name] = nn.Parameter(param.to("meta"), param.requires_grad)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def make_weights(model: nn.Module, device: torch.device) -> None:
    """Memory for the parameters that are on the meta device, with no values yet; tied ones stay
    tied."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            if old.is_meta and old not in made:
                made[old] = nn.Parameter(torch.empty_like(old, device=device), old.requires_grad)
            if old in made:
                setattr(module, name, made[old])


def _files_of(folder: Path) -> dict[str, Path]:
    """Name -> file of every tensor in a folder. Raises ModelError."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                found |= dict.fromkeys(file.keys(), path)
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"--init-from {folder}: {path.name} cannot be read ({error})"
            ) from None
    if not found:
        raise ModelError(f"--init-from {folder}: no *.safetensors file in this folder")
    return found


def copy_part(target: torch.Tensor, whole: Any) -> None:
    """Give a parameter this rank's part of its values: a tensor, or a slice of safetensors, of
    which no more is read."""
    if isinstance(target, DTensor):
        target.to_local().copy_(whole[local_part(target)])
    else:
        target.copy_(whole[...])


def parameters_of_base(model: nn.Module) -> dict[str, torch.Tensor]:
    """Name without adapters -> parameter; tied ones under their first name."""
    return _of_base(dict(model.named_parameters()))


def _wanted(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a file must have: tied weights once, under their first name; nothing of adapters."""
    saved = model.state_dict()
    buffers = {name: value for name, value in model.named_buffers() if name in saved}
    return _of_base(dict(model.named_parameters()) | buffers)


def _of_base(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    named = ((base_name(name), value) for name, value in tensors.items())
    return {name: value for name, value in named if name is not None}


@torch.no_grad()
def load_safetensors(folder: Path, model: torch.nn.Module) -> None:
    """Fill the parameters of a model, divided or not; dtypes are converted to the model's.

    Raises ModelError where a tensor is missing, unknown, or of another shape.
    """
    from safetensors import safe_open

    files, wanted = _files_of(folder), _wanted(model)
    known = _of_base(model.state_dict()).keys()
    missing, unknown = sorted(wanted.keys() - files.keys()), sorted(files.keys() - known)
    if missing or unknown:
        what = f"has no {missing[0]}" if missing else f"has {unknown[0]}, which the model has not"
        raise ModelError(f"--init-from {folder}: it {what}; is config.json that of these weights?")
    for name, target in wanted.items():
        with safe_open(files[name], framework="pt") as file:
            found = file.get_slice(name)
            if (shape := list(found.get_shape())) != list(target.shape):
                raise ModelError(
                    f"--init-from {folder}: {name} is {shape}, and {list(target.shape)} in the "
                    "model: the tokenizer (--tokenizer) gives the vocabulary, config.json the rest"
                )
            copy_part(target, found)
