"""What the service computes: sentence embeddings, and text from a causal language model."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trnx.backend import demo
from trnx.jobs import models
from trnx.jobs.corpus import load_tokenizer
from trnx.jobs.errors import ModelError
from trnx.jobs.sampling import draw, number_of
from trnx.jobs.scheduler import Item
from trnx.jobs.trained import find, merged

os.environ.setdefault("HF_HUB_OFFLINE", "1")
MINILM = "minilm"


def _compile(
    model: torch.nn.Module, backend: str, options: Mapping[str, str] | None
) -> Callable[..., Any]:
    """One graph for each shape: every shape is known, and hardware takes no symbolic ones."""
    if backend == "eager":
        return model
    return torch.compile(
        model, backend=backend, options=dict(options) if options else None, dynamic=False
    )


def _pretrained(folder: Path, flag: str, kind: str) -> tuple[Any, Any]:
    """(model in the dtype of its weights, tokenizer) of a folder of `save_pretrained`, which `flag`
    names; `kind` is the class of transformers that reads it.

    Code of the folder is not run, and weights are safetensors: nothing is unpickled. Raises
    ModelError.
    """
    import transformers

    tokenizer = load_tokenizer(str(folder), flag)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = getattr(transformers, kind).from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype="auto",
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"{flag} {folder}: no model can be read there ({error})") from None
    return model, tokenizer


class EmbeddingEngine:
    """Mean-pooled, normalised sentence embeddings of a BERT-like encoder in a local folder."""

    name = "embed"

    def __init__(
        self, source: str, backend: str, options: Mapping[str, str] | None, device: torch.device
    ) -> None:
        """`source` is "minilm" or a folder with a transformers model. Raises ModelError."""
        folder = demo.model_folder() if source == MINILM else Path(source)
        model, self.tokenizer = _pretrained(folder, "--embed", "AutoModel")
        self.limit = int(model.config.max_position_embeddings)
        self._device = device
        self._model = _compile(model.eval().to(device), backend, options)

    def tokens(self, text: str) -> list[int]:
        """Token numbers, with the markers of begin and end."""
        numbers: list[int] = self.tokenizer(text, truncation=False, verbose=False)["input_ids"]
        return numbers

    def warm_up(self, rows: int, length: int) -> None:
        """Compile one shape."""
        self._embed([[0] * length], rows, length)

    def step(self, items: Sequence[Item], rows: int, length: int) -> list[Any]:
        """A list of floats for each item."""
        vectors = self._embed([item.tokens for item in items], rows, length)
        return [vector.tolist() for vector in vectors[: len(items)]]

    @torch.no_grad()
    def _embed(self, tokens: list[list[int]], rows: int, length: int) -> torch.Tensor:
        numbers = torch.zeros(rows, length, dtype=torch.int64)
        mask = torch.zeros(rows, length, dtype=torch.int64)
        mask[:, 0] = 1  # rows that nobody asked for divide by their count of tokens, too
        for row, own in enumerate(tokens):
            numbers[row, : len(own)] = torch.tensor(own)
            mask[row, : len(own)] = 1
        inputs = {"input_ids": numbers, "attention_mask": mask}
        on_device = {name: value.to(self._device) for name, value in inputs.items()}
        return demo.embeddings(self._model, on_device).cpu()


def _ends_of(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a text: the tokenizer's, and those of the model's generation settings; for
    bytes the 0."""
    if tokenizer is None:
        return frozenset({0})
    stated = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    several = stated if isinstance(stated, list) else [stated]
    return frozenset({tokenizer.eos_token_id, *several} - {None})


class GenerationEngine:
    """Text from a model that train.py or transformers saved, or from random weights of a preset.

    There is no cache of keys and values: a step runs the whole sequence, in the shape of its
    bucket, and needs no attention mask, because padding comes behind the last token.
    """

    name = "generate"

    def __init__(
        self, source: str, backend: str, options: Mapping[str, str] | None, device: torch.device
    ) -> None:
        """`source` is a preset, a checkpoint, a folder of checkpoints, or one of `save_pretrained`.

        Raises ModelError.
        """
        pretrained = (Path(source) / "config.json").is_file()
        if pretrained:
            model, self._tokenizer = _pretrained(Path(source), "--generate", "AutoModelForCausalLM")
            self.limit = models.positions(model.config)
        else:
            run, folder = find(source, f"--generate {source}")
            model, self._tokenizer = merged(run, folder)
            self.limit = int(run["sequence_length"])
        # train.py learns from text without the tokenizer's marks of a beginning.
        self._with_marks = pretrained
        self.ends = _ends_of(model, self._tokenizer)
        self._device = device
        # As it is, for continuous batching, which compiles it with what is around it.
        self.module = model.eval().to(device)
        self._model = _compile(self.module, backend, options)

    def tokens(self, text: str) -> list[int]:
        """Token numbers: bytes, or the tokenizer's."""
        if self._tokenizer is None:
            return list(text.encode())
        found = self._tokenizer(text, add_special_tokens=self._with_marks, verbose=False)
        numbers: list[int] = found["input_ids"]
        return numbers

    def chat_tokens(self, messages: list[dict[str, str]]) -> list[int]:
        """Tokens of a chat, by the tokenizer's template; without one a line for each turn."""
        if self._tokenizer is not None and self._tokenizer.chat_template is not None:
            numbers: list[int] = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
            return numbers
        turns = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.tokens("".join([*turns, "assistant:"]))

    def text(self, tokens: list[int]) -> str:
        """The text of tokens."""
        if self._tokenizer is None:
            return bytes(tokens).decode(errors="replace")
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def warm_up(self, rows: int, length: int) -> None:
        """Compile one shape."""
        self._logits([[0] * length], rows, length)

    def step(self, items: Sequence[Item], rows: int, length: int) -> list[Any]:
        """One more token for each item; text and reason for those that are done."""
        logits = self._logits([item.tokens for item in items], rows, length)
        return [self._extend(item, own) for item, own in zip(items, logits, strict=True)]

    @torch.no_grad()
    def _logits(self, tokens: list[list[int]], rows: int, length: int) -> torch.Tensor:
        """Logits behind the last token of each sequence, float32 [sequences, vocabulary]."""
        numbers = torch.zeros(rows, length, dtype=torch.int64)
        for row, own in enumerate(tokens):
            numbers[row, : len(own)] = torch.tensor(own)
        last = torch.tensor([len(own) - 1 for own in tokens])
        logits: torch.Tensor = self._model(input_ids=numbers.to(self._device)).logits
        return logits.float().cpu()[torch.arange(len(tokens)), last]

    def _extend(self, item: Item, logits: torch.Tensor) -> dict[str, Any] | None:
        request, made = item.request, item.state.setdefault("made", [])
        token = self._sample(item, logits)
        ended = token in self.ends
        if not ended:
            made.append(token)
            item.tokens.append(token)
        if not ended and len(made) < request.max_new_tokens:
            return None
        reason = "stop" if ended else "length"
        return {"text": self.text(made), "tokens": len(made), "finish_reason": reason}

    @staticmethod
    def _sample(item: Item, logits: torch.Tensor) -> int:
        request = item.request
        if request.temperature == 0:
            return int(logits.argmax())
        if "seed" not in item.state:
            drawn_anew = request.seed is None
            item.state["seed"] = secrets.randbits(64) if drawn_anew else request.seed
        asked = request.temperature, 1.0, number_of(item.state["seed"], len(item.tokens))
        return int(draw(logits[None], *(torch.tensor([[value]]) for value in asked)).argmax())
