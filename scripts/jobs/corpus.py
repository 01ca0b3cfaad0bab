"""Training text: local files -> tokens -> a sample for every number, the same in every run.

Tokens are the bytes of the files, in the order of their paths, one zero byte behind each; or those
of a given tokenizer. The tokens are cut into windows of `length + 1` that overlap by one. Sample
`n` is a pure function of the tokens, the seed and `n`: each epoch shuffles the windows anew. So a
resumed run, or one with another number of processes, sees the same data.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trnx.jobs.errors import DataError, ModelError

BYTES = "bytes"
BYTE_VOCABULARY = 256
_PERMUTATIONS_KEPT = 2


def text_files(path: Path) -> list[Path]:
    """A text file, or the `*.txt` files below a folder in the order of their paths."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"--data {path}: no such file or folder")
    files = sorted(file for file in path.rglob("*.txt") if file.is_file())
    if not files:
        raise DataError(f"--data {path}: no *.txt file in this folder")
    return files


def _byte_tokens(files: list[Path]) -> np.ndarray[Any, Any]:
    return np.frombuffer(b"".join(file.read_bytes() + b"\0" for file in files), dtype=np.uint8)


def load_tokenizer(folder: str, flag: str) -> Any:
    """The transformers tokenizer in a local folder, which `flag` names. Raises ModelError."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    if not Path(folder).is_dir():
        raise ModelError(f"{flag} {folder}: no such folder")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ModelError(f"{flag} {folder}: no tokenizer can be read there ({error})") from None


def _tokenizer_tokens(files: list[Path], tokenizer: Any) -> np.ndarray[Any, Any]:
    tokens: list[int] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is not UTF-8 ({error}); --tokenizer bytes takes it") from None
        tokens.extend(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        if tokenizer.eos_token_id is not None:
            tokens.append(tokenizer.eos_token_id)
    return np.asarray(tokens, dtype=np.int32)


class Corpus:
    """`batch(first, count)` gives samples `first` to `first + count - 1` as int64
    [count, length + 1]; `digest` tells corpora apart."""

    def __init__(self, tokens: np.ndarray[Any, Any], vocabulary: int, length: int, seed: int):
        self.vocabulary = vocabulary
        self._tokens = tokens
        self._length = length
        self._seed = seed
        self._windows = (len(tokens) - 1) // length
        if self._windows < 1:
            raise DataError(
                f"the training text has {len(tokens)} tokens; --sequence-length {length} needs at "
                f"least {length + 1}"
            )
        self.digest = hashlib.sha256(np.ascontiguousarray(tokens).tobytes()).hexdigest()[:16]
        self._permutations: dict[int, torch.Tensor] = {}

    @property
    def windows(self) -> int:
        """Samples of one epoch."""
        return self._windows

    def batch(self, first: int, count: int) -> torch.Tensor:
        """See the class."""
        return torch.stack([self._sample(number) for number in range(first, first + count)])

    def _sample(self, number: int) -> torch.Tensor:
        epoch, place = divmod(number, self._windows)
        start = int(self._permutation(epoch)[place]) * self._length
        window = self._tokens[start : start + self._length + 1]
        return torch.from_numpy(window.astype(np.int64))

    def _permutation(self, epoch: int) -> torch.Tensor:
        if epoch not in self._permutations:
            while len(self._permutations) >= _PERMUTATIONS_KEPT:
                self._permutations.pop(next(iter(self._permutations)))
            entropy = np.random.SeedSequence([self._seed, epoch]).generate_state(1, np.uint64)
            generator = torch.Generator().manual_seed(int(entropy[0] >> np.uint64(1)))
            self._permutations[epoch] = torch.randperm(self._windows, generator=generator)
        return self._permutations[epoch]


def load_corpus(path: Path, tokenizer: str, length: int, seed: int) -> Corpus:
    """The corpus of a file or folder. Raises DataError or ModelError."""
    files = text_files(path)
    if tokenizer == BYTES:
        return Corpus(_byte_tokens(files), BYTE_VOCABULARY, length, seed)
    loaded = load_tokenizer(tokenizer, "--tokenizer")
    return Corpus(_tokenizer_tokens(files, loaded), len(loaded), length, seed)
