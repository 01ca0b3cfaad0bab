"""Training text: tokens, windows, the order of samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trnx.backend import demo
from trnx.errors import DataError
from trnx.jobs.corpus import BYTES, load_corpus, load_tokenizer


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
    with pytest.raises(DataError, match=r"no \*\.txt file in this folder"):
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
