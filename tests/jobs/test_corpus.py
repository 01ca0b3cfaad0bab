"""Training text: tokens, windows, the order of samples."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch

from trnx.backend import demo
from trnx.errors import DataError
from trnx.jobs.corpus import BYTES, load_corpus, load_tokenizer
from trnx.jobs.shuffle import shuffled


def written(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        (folder / f"{name}.txt").write_bytes(content)
    return folder


def test_tokens_are_bytes_of_the_files_in_order_of_their_paths(tmp_path: Path) -> None:
    written(tmp_path, b=b"def", a=b"abc")
    (tmp_path / "c.bin").write_bytes(b"ignored")
    corpus = load_corpus(tmp_path, BYTES, 7, 0)
    assert corpus.vocabulary == 256
    assert corpus.windows == 1
    assert bytes(corpus.batch(0, 1)[0].tolist()) == b"abc\0def\0"


def test_an_epoch_has_every_window_once_and_the_next_another_order(tmp_path: Path) -> None:
    corpus = load_corpus(written(tmp_path, a=bytes(range(1, 201))), BYTES, 4, 0)
    epochs = [corpus.batch(n * corpus.windows, corpus.windows) for n in range(3)]
    starts = [epoch[:, 0].tolist() for epoch in epochs]
    for epoch, first in zip(epochs, starts, strict=True):
        assert epoch.shape == (corpus.windows, 5)
        assert sorted(first) == list(range(1, 201, 4))
    assert starts[0] != starts[1] != starts[2]


def test_a_sample_depends_on_seed_and_number_alone(tmp_path: Path) -> None:
    written(tmp_path, a=bytes(range(1, 201)))
    one, two = (load_corpus(tmp_path, BYTES, 4, 0) for _ in range(2))
    whole = one.batch(0, 130)
    # In another order, in other batches, across the ends of epochs.
    for first, count in ((100, 30), (3, 5), (48, 4), (0, 130)):
        assert torch.equal(two.batch(first, count), whole[first : first + count])
    assert not torch.equal(load_corpus(tmp_path, BYTES, 4, 1).batch(0, 130), whole)
    assert one.digest == two.digest
    written(tmp_path, b=b"x")
    assert load_corpus(tmp_path, BYTES, 4, 0).digest != one.digest


def test_tokenizer_of_a_folder(tmp_path: Path) -> None:
    folder = str(demo.model_folder())
    written(tmp_path, a=b"tensor engines multiply matrices " * 4)
    corpus = load_corpus(tmp_path, folder, 3, 0)
    tokenizer = load_tokenizer(folder, "--tokenizer")
    assert corpus.vocabulary == len(tokenizer)
    expected = tokenizer("tensor engines multiply matrices " * 4, add_special_tokens=False)
    windows = {tuple(row) for row in corpus.batch(0, corpus.windows).tolist()}
    assert tuple(expected["input_ids"][:4]) in windows
    assert corpus.batch(0, 1).dtype == torch.int64


@pytest.mark.parametrize("tokenizer", ["bytes", "folder"])
def test_unreadable_text_is_a_named_error(tokenizer: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \*\.txt file in this folder, and no dataset"):
        load_corpus(tmp_path, BYTES, 4, 0)
    written(tmp_path, a=b"\xff\xfe" * 20)
    if tokenizer == "bytes":
        assert load_corpus(tmp_path, BYTES, 4, 0).windows == 10
    else:
        with pytest.raises(DataError, match=r"a\.txt is not UTF-8"):
            load_corpus(tmp_path, str(demo.model_folder()), 4, 0)


def test_text_that_is_too_short_is_a_named_error(tmp_path: Path) -> None:
    written(tmp_path, a=b"abc")
    assert load_corpus(tmp_path, BYTES, 3, 0).windows == 1
    with pytest.raises(DataError, match="has 4 tokens; --sequence-length 4 needs at least 5"):
        load_corpus(tmp_path, BYTES, 4, 0)


def test_tokens_of_a_numpy_file_are_those_of_the_text(tmp_path: Path) -> None:
    written(tmp_path, a=bytes(range(1, 201)))
    expected = load_corpus(tmp_path, BYTES, 4, 0)
    for dtype in (np.uint8, np.int32, np.int64):
        path = tmp_path / "tokens.npy"
        np.save(path, np.array([*range(1, 201), 0], dtype=dtype))
        corpus = load_corpus(path, BYTES, 4, 0)
        assert corpus.windows == expected.windows
        assert torch.equal(corpus.batch(0, 60), expected.batch(0, 60))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.array([1, 2, 300] * 9), "tokens from 1 to 300, and the vocabulary 256"),
        (np.array([1, -2, 3] * 9), "tokens from -2 to 3"),
        (np.zeros((4, 9), dtype=np.int32), r"tokens are integers in one dimension.*\[4, 9\]"),
        (np.zeros(40), "tokens are integers in one dimension, this is float64"),
        (np.array([{}] * 9), "no array of numpy can be read there"),
        (np.array([], dtype=np.int32), "the training text has 0 tokens"),
    ],
)
def test_numpy_file_that_holds_no_tokens_is_a_named_error(
    tokens: np.ndarray, message: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "tokens.npy", tokens)
    with pytest.raises(DataError, match=message):
        load_corpus(tmp_path / "tokens.npy", BYTES, 4, 0)


def test_long_text_is_tokenised_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(demo.model_folder())
    written(tmp_path, a=b"tensor engines multiply\nmatrices and vectors\n" * 40)
    whole = load_corpus(tmp_path, folder, 3, 0)
    monkeypatch.setattr("trnx.jobs.corpus._TEXT_PIECE", 50)
    pieces = load_corpus(tmp_path, folder, 3, 0)
    assert pieces.digest == whole.digest
    assert torch.equal(pieces.batch(0, whole.windows), whole.batch(0, whole.windows))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 127, 128, 129, 1000])
def test_shuffle_has_every_number_once(size: int) -> None:
    orders = [[shuffled(place, size, 0, epoch) for place in range(size)] for epoch in range(2)]
    for order in orders:
        assert sorted(order) == list(range(size))
    if size > 5:
        assert orders[0] != orders[1]
        assert orders[0] != list(range(size))
        assert orders[0] != [shuffled(place, size, 1, 0) for place in range(size)]


def test_shuffle_spreads_neighbours() -> None:
    size = 4096
    order = np.array([shuffled(place, size, 3, 0) for place in range(size)])
    # Ranks of a random permutation correlate by about 1 / sqrt(size); fixed points: about one.
    assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 5 / size**0.5
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 5 / size**0.5
    assert (order == np.arange(size)).sum() < 10


_GROWTH = """
import resource, sys
from pathlib import Path
from trnx.jobs.corpus import load_corpus

small, large, tokenizer = sys.argv[1:]
load_corpus(Path(small), tokenizer, 16, 0).batch(0, 64)
# Private memory that can be written alone: pages of a mapped file are the system's to take back.
pages = int(Path("/proc/self/statm").read_text().split()[5])
limit = pages * resource.getpagesize() + (96 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
load_corpus(Path(large), tokenizer, 16, 0).batch(0, 64)
"""


@pytest.mark.parametrize("tokenizer", ["bytes", "folder"])
def test_memory_does_not_grow_with_the_text(tokenizer: str, tmp_path: Path) -> None:
    name = BYTES if tokenizer == "bytes" else str(demo.model_folder())
    line = b"tensor engines multiply matrices and vectors\n"
    # Kept as a list or an array of int64, either needs more than the 96 MB that are allowed.
    copies = {"small": 1 << 20, "large": (128 if tokenizer == "bytes" else 3) << 20}
    for part, size in copies.items():
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.txt").write_bytes(line * (size // len(line)))
    command = [
        sys.executable,
        "-c",
        _GROWTH,
        str(tmp_path / "small"),
        str(tmp_path / "large"),
        name,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_tokens_that_find_no_room_are_a_named_error(
    tmp_path: Path, file_limit: Callable[[int], AbstractContextManager[None]]
) -> None:
    written(tmp_path, a=b"x" * 5000)
    with file_limit(1000), pytest.raises(DataError, match=r"cannot be written to .*TMPDIR names"):
        load_corpus(tmp_path, BYTES, 4, 0)
