"""LoRA by peft: small trained matrices beside the frozen linear layers of a model.

Adapters are put into the model in place, so that its parts keep their paths and are split, sharded
and compiled as before. A checkpoint then holds the adapters alone; the frozen weights are made
again from where they came from.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from trnx.backend.torch_internals import fake_mode
from trnx.jobs.errors import MissingJobsExtraError, ModelError
from trnx.jobs.parallel import linear_layers

_ADAPTER = "default"  # peft's own name for the only one
_BASE = ".base_layer"


def _peft() -> Any:
    try:
        import peft
    except ModuleNotFoundError as error:
        if error.name != "peft":
            raise
        raise MissingJobsExtraError(
            "--lora-rank needs the package peft: pip install 'trnx[training]'"
        ) from None
    return peft


def base_name(name: str) -> str | None:
    """The name of a parameter in a model without adapters; None for one of an adapter."""
    return None if ".lora_" in name else name.replace(f"{_BASE}.", ".")


def add_lora(model: nn.Module, keys: Mapping[str, Any], seed: int) -> None:
    """Freeze a model and put adapters into it. `keys` are `rank`, `alpha`, `dropout` and `targets`,
    the last parts of module paths, None for peft's choice for the architecture.

    Raises ModelError, and MissingJobsExtraError without peft.
    """
    peft = _peft()
    config = peft.LoraConfig(
        r=keys["rank"],
        lora_alpha=keys["alpha"],
        lora_dropout=keys["dropout"],
        target_modules=keys["targets"],
    )
    torch.manual_seed(seed)
    embedding = model.get_input_embeddings().weight  # type: ignore[operator]
    try:
        with warnings.catch_warnings():
            # It sets by itself what it asks for.
            warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
            # What it goes on to say is refused below.
            warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")
            peft.inject_adapter_in_model(config, model, adapter_name=_ADAPTER)
    except ValueError as error:
        raise ModelError(f"peft refuses --lora-targets: {error}") from None
    for name, layer in _layers(model):
        if layer.get_base_layer().weight is embedding:
            raise ModelError(
                f"--lora-targets: {name} shares its weights with the embedding, which the adapter "
                "would change as well"
            )
        _fill(layer)


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """(path, module) of everything that has an adapter."""
    kind = _peft().tuners.lora.LoraLayer
    return ((name, module) for name, module in model.named_modules() if isinstance(module, kind))


def _fill(layer: Any) -> None:
    """Draw the values of adapters that were made beside weights on the meta device."""
    parts = (layer.lora_A[_ADAPTER], layer.lora_B[_ADAPTER])
    if any(part.weight.is_meta for part in parts):
        for part in parts:
            part.to_empty(device="cpu")
        layer.reset_lora_parameters(_ADAPTER, True)


@torch.no_grad()
def merge_lora(model: nn.Module) -> None:
    """Add the adapters to the weights beside them, and take them out."""
    for name, layer in list(_layers(model)):
        layer.merge()
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer.get_base_layer())


def save_adapters(model: nn.Module, run: Mapping[str, Any], folder: Path) -> None:
    """Write the adapters of a model as peft does. Raises OSError."""
    from safetensors.torch import save_file

    keys, layers = run["lora"], dict(_layers(model))
    config = _peft().LoraConfig(
        r=keys["rank"],
        lora_alpha=keys["alpha"],
        lora_dropout=keys["dropout"],
        target_modules=sorted({name.rpartition(".")[2] for name in layers}),
        fan_in_fan_out=any(layer.fan_in_fan_out for layer in layers.values()),
        task_type="CAUSAL_LM",
        base_model_name_or_path=run["init_from"],
        inference_mode=True,
    )
    config.save_pretrained(folder)
    tensors = {
        f"base_model.model.{name}.lora_{part}.weight": getattr(layer, f"lora_{part}")[_ADAPTER]
        .weight.detach()
        .contiguous()
        for name, layer in layers.items()
        for part in "AB"
    }
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})


def passes(model: nn.Module) -> dict[str, int]:
    """Path -> matrix products of a training step of every linear layer: one forward, one for the
    gradient of the weight where it is trained, one for that of the input where that needs one."""
    found: dict[str, int] = {}
    hooks = []
    for name, module in linear_layers(model):
        hooks.append(module.register_forward_pre_hook(_count(found, name)))
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    try:
        with fake_mode():
            fakes = {name: _like(value) for name, value in tensors.items()}
            tokens = torch.zeros(1, 2, dtype=torch.int64)
            functional_call(model, fakes, (tokens,), tie_weights=True)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _like(value: torch.Tensor) -> torch.Tensor:
    """On one device: a model may have its parameters on another than its buffers."""
    return torch.empty(value.shape, dtype=value.dtype, requires_grad=value.requires_grad)


def _count(found: dict[str, int], name: str) -> Any:
    def count(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        found[name] = 1 + module.weight.requires_grad + inputs[0].requires_grad

    return count


def digest_of(folder: Path) -> str:
    """Tells the weights of one folder of safetensors from those of another. Raises ModelError."""
    digest = hashlib.sha256()
    with _read_problem(folder):
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


@contextmanager
def _read_problem(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(f"{folder}: its weights cannot be read ({error.strerror})") from None
