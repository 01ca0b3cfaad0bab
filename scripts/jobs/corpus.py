"""Training tokens: local files -> tokens on disk -> a sample for every number, always the same.

Tokens are the bytes of the files, in the order of their paths, one zero byte behind each; or those
of a given tokenizer, with its end-of-sequence token behind each file; or an array of numpy that is
on disk already. Texts of a dataset (`arrow_data.py`) are as files are, rows of tokens are
taken as they stand. All are cut into windows of `length + 1` that overlap by one: sequences are
packed without padding. Sample `n` is a pure function of the tokens, the seed and `n`: each epoch
shuffles the windows anew. So a resumed run, or one with another number of processes, sees the same
data.

What stands in memory does not grow with the text: tokens are mapped from a file without a name in
the folder for temporary files (`TMPDIR`), and the order of an epoch is computed, not kept.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from trnx.jobs.arrow_data import Rows, is_arrow_data, open_rows
from trnx.jobs.errors import DataError, ModelError
from trnx.jobs.shuffle import shuffled

BYTES = "bytes"
BYTE_VOCABULARY = 256
_PIECE = 1 << 20
# Characters; a tokenizer needs more than a hundred times their size while it works.
_TEXT_PIECE = 1 << 18
Tokens = np.ndarray[Any, Any]


def text_files(path: Path) -> list[Path]:
    """A text file, or the `*.txt` files below a folder in the order of their paths."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"--data {path}: no such file or folder")
    files = sorted(file for file in path.rglob("*.txt") if file.is_file())
    if not files:
        raise DataError(f"--data {path}: no *.txt file in this folder, and no dataset")
    return files


def _byte_pieces(files: Iterable[Path]) -> Iterator[Tokens]:
    for file in files:
        with file.open("rb") as opened:
            while piece := opened.read(_PIECE):
                yield np.frombuffer(piece, dtype=np.uint8)
        yield np.zeros(1, dtype=np.uint8)


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


def _lines(file: Path) -> Iterator[list[str]]:
    """Text is cut behind lines, so that no more than a piece is in a tokenizer at a time."""
    try:
        with file.open(encoding="utf-8") as opened:
            while lines := opened.readlines(_TEXT_PIECE):
                yield lines
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 ({error}); --tokenizer bytes takes it") from None


def _tokenizer_pieces(texts: Iterable[Iterable[list[str]]], tokenizer: Any) -> Iterator[Tokens]:
    for pieces in texts:
        for lines in pieces:
            text = "".join(lines)
            found = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            yield np.asarray(found, dtype=np.int32)
        if tokenizer.eos_token_id is not None:
            yield np.asarray([tokenizer.eos_token_id], dtype=np.int32)


def _row_pieces(rows: Rows, tokenizer: Any, vocabulary: int) -> Iterator[Tokens]:
    """Tokens of a dataset's rows."""
    if rows.has_tokens:
        for row in rows:
            tokens = np.asarray(row, dtype=np.int64)
            _check_vocabulary(tokens, vocabulary, rows.path)
            yield tokens.astype(np.int32)
    elif tokenizer is None:
        for row in rows:
            yield np.frombuffer(row.encode() + b"\0", dtype=np.uint8)
    else:
        texts = (iter(partial(StringIO(row).readlines, _TEXT_PIECE), []) for row in rows)
        yield from _tokenizer_pieces(texts, tokenizer)


def _on_disk(pieces: Iterable[Tokens]) -> Tokens:
    """The pieces one behind another, mapped from a file that ends with the process.

    Raises DataError where they find no room.
    """
    dtype, count = np.dtype(np.uint8), 0
    # Without a buffer: what could not be written is not tried again when the file is closed.
    with tempfile.TemporaryFile(prefix="trnx-tokens-", buffering=0) as file:
        for piece in pieces:
            _write(file, piece.tobytes())
            dtype, count = piece.dtype, count + len(piece)
        return np.memmap(file, dtype, mode="r", shape=count) if count else np.empty(0, dtype)


def _write(file: IO[bytes], content: bytes) -> None:
    try:
        while content:
            content = content[file.write(content) :]
    except OSError as error:
        raise DataError(
            f"tokens cannot be written to {tempfile.gettempdir()}: {error.strerror}; TMPDIR names "
            "a folder with room"
        ) from None


def _check_vocabulary(tokens: Tokens, vocabulary: int, path: Path) -> None:
    """Raises DataError for tokens that are none of the vocabulary."""
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocabulary):
        raise DataError(
            f"--data {path}: it has tokens from {tokens.min()} to {tokens.max()}, and the "
            f"vocabulary {vocabulary}; name their tokenizer with --tokenizer"
        )


def _token_file(path: Path, vocabulary: int) -> Tokens:
    """A one-dimensional array of integers that `numpy.save` wrote, mapped. Raises DataError."""
    try:
        tokens: Tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"--data {path}: no array of numpy can be read there ({error})") from None
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise DataError(
            f"--data {path}: tokens are integers in one dimension, this is {tokens.dtype} "
            f"{list(tokens.shape)}"
        )
    for first in range(0, len(tokens), _PIECE):
        _check_vocabulary(tokens[first : first + _PIECE], vocabulary, path)
    return tokens


def _digest(tokens: Tokens) -> str:
    digest = hashlib.sha256()
    for first in range(0, len(tokens), _PIECE):
        digest.update(np.ascontiguousarray(tokens[first : first + _PIECE]).data)
    return digest.hexdigest()[:16]


class Corpus:
    """`batch(first, count)` gives samples `first` to `first + count - 1` as int64
    [count, length + 1]; `digest` tells corpora apart."""

    def __init__(self, tokens: Tokens, vocabulary: int, length: int, seed: int):
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
        self.digest = _digest(tokens)

    @property
    def windows(self) -> int:
        """Samples of one epoch."""
        return self._windows

    def batch(self, first: int, count: int) -> torch.Tensor:
        """See the class."""
        return torch.stack([self._sample(number) for number in range(first, first + count)])

    def _sample(self, number: int) -> torch.Tensor:
        epoch, place = divmod(number, self._windows)
        start = shuffled(place, self._windows, self._seed, epoch) * self._length
        window = self._tokens[start : start + self._length + 1]
        return torch.from_numpy(window.astype(np.int64))


def load_corpus(
    path: Path,
    tokenizer: str,
    length: int,
    seed: int,
    split: str = "train",
    column: str | None = None,
) -> Corpus:
    """The corpus of a text file, a folder of them, a dataset (which `split` and `column` are of),
    or a `.npy` file of tokens.

    Raises DataError or ModelError.
    """
    loaded = None if tokenizer == BYTES else load_tokenizer(tokenizer, "--tokenizer")
    vocabulary = BYTE_VOCABULARY if loaded is None else len(loaded)
    if path.suffix == ".npy" and path.is_file():
        return Corpus(_token_file(path, vocabulary), vocabulary, length, seed)
    if is_arrow_data(path):
        rows = open_rows(path, split, column)
        return Corpus(_on_disk(_row_pieces(rows, loaded, vocabulary)), vocabulary, length, seed)
    if column is not None:
        raise DataError(f"--data {path}: --data-column is for datasets, and this is none")
    files = text_files(path)
    texts = map(_lines, files)
    pieces = _byte_pieces(files) if loaded is None else _tokenizer_pieces(texts, loaded)
    return Corpus(_on_disk(pieces), vocabulary, length, seed)
