"""Weights of a folder as `save_pretrained` writes it: `*.safetensors`, read tensor by tensor.

One tensor at a time is in memory beside the model. Nothing is run: safetensors holds numbers alone.
"""

from __future__ import annotations

from pathlib import Path

import torch

from trnx.jobs.errors import ModelError


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


def _wanted(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a file must have: tied weights once, under their first name."""
    return dict(model.named_parameters()) | {
        name: value for name, value in model.named_buffers() if name in model.state_dict()
    }


@torch.no_grad()
def load_safetensors(folder: Path, model: torch.nn.Module) -> None:
    """Fill the parameters of a model in one piece; dtypes are converted to the model's.

    Raises ModelError where a tensor is missing, unknown, or of another shape.
    """
    from safetensors import safe_open

    files, wanted = _files_of(folder), _wanted(model)
    known = model.state_dict().keys()
    missing, unknown = sorted(wanted.keys() - files.keys()), sorted(files.keys() - known)
    if missing or unknown:
        what = f"has no {missing[0]}" if missing else f"has {unknown[0]}, which the model has not"
        raise ModelError(f"--init-from {folder}: it {what}; is config.json that of these weights?")
    for name, target in wanted.items():
        with safe_open(files[name], framework="pt") as file:
            value = file.get_tensor(name)
        if value.shape != target.shape:
            raise ModelError(
                f"--init-from {folder}: {name} is {list(value.shape)}, and {list(target.shape)} in "
                "the model: the tokenizer (--tokenizer) gives the vocabulary, config.json the rest"
            )
        target.copy_(value)
