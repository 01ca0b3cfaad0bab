"""Hugging Face datasets on disk as training data."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trnx.backend import demo
from trnx.jobs.arrow_data import is_arrow_data
from trnx.jobs.corpus import BYTES, load_corpus
from trnx.jobs.errors import DataError

datasets = pytest.importorskip("datasets", reason="needs the extra training (datasets)")
TEXTS = ["tensor engines multiply\nmatrices ", "", "and vectors " * 9, "\u00e9\r\n" * 20]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two splits, with a column of texts and one of numbers."""
    rows = {"text": TEXTS, "number": [1, 2, 3, 4], "other": TEXTS[::-1]}
    train = datasets.Dataset.from_dict(rows)
    splits = datasets.DatasetDict({"train": train, "test": train.select([2])})
    splits.save_to_disk(tmp_path / "data")
    return tmp_path / "data"


def every_sample(*arguments: Any, **options: Any) -> torch.Tensor:
    corpus = load_corpus(*arguments, **options)
    return corpus.batch(0, corpus.windows)


@pytest.mark.parametrize("tokenizer", ["bytes", "folder"])
def test_rows_are_as_files_of_their_texts(saved: Path, tokenizer: str, tmp_path: Path) -> None:
    name = BYTES if tokenizer == "bytes" else str(demo.model_folder())
    (tmp_path / "files").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "files" / f"{number}.txt").write_bytes(text.encode())
    expected = every_sample(tmp_path / "files", name, 4, 0)
    assert torch.equal(every_sample(saved, name, 4, 0), expected)
    # A split, the file of a split, and another column.
    assert torch.equal(every_sample(saved / "train", name, 4, 0), expected)
    (file,) = (saved / "train").glob("*.arrow")
    assert torch.equal(every_sample(file, name, 4, 0), expected)
    other = every_sample(saved, name, 4, 0, column="other")
    assert other.shape == expected.shape
    assert not torch.equal(other, expected)
    assert len(every_sample(saved, name, 4, 0, split="test")) < len(expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_rows_of_tokens_are_taken_as_they_stand(dtype: str, tmp_path: Path) -> None:
    feature = datasets.Sequence(datasets.Value(dtype))
    features = datasets.Features({"input_ids": feature, "text": datasets.Value("string")})
    rows = {"input_ids": [[5, 6, 7], [], [8], [9, 10, 11, 12, 13]], "text": ["x"] * 4}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "data")
    assert is_arrow_data(tmp_path / "data")
    assert every_sample(tmp_path / "data", BYTES, 8, 0).tolist() == [list(range(5, 14))]
    datasets.DatasetDict({"a": datasets.Dataset.from_dict(rows)}).save_to_disk(tmp_path / "a")
    with pytest.raises(DataError, match="no split 'train'; --data-split names one of a"):
        load_corpus(tmp_path / "a", BYTES, 4, 0)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ({"body": ["a" * 9]}, {}, "no column 'text'; --data-column names one of body"),
        ({"body": ["a" * 9]}, {"column": "x"}, "no column 'x'"),
        ({"text": [1, 2]}, {}, "text holds neither texts nor lists of tokens"),
        ({"text": [[0.5]]}, {}, "text holds neither texts nor lists of tokens"),
        ({"text": ["a" * 99, None]}, {}, "row 1 of text is null"),
        ({"input_ids": [[1, 256] * 9]}, {}, "tokens from 1 to 256, and the vocabulary 256"),
        ({"input_ids": [[-1] * 9]}, {}, "tokens from -1 to -1"),
        ({"text": []}, {}, "no dataset can be read there"),
    ],
)
def test_what_cannot_be_read_is_a_named_error(
    rows: dict[str, list[Any]], options: dict[str, str], message: str, tmp_path: Path
) -> None:
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "data")
    with pytest.raises(DataError, match=message):
        load_corpus(tmp_path / "data", BYTES, 4, 0, **options)


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", None])
def test_damaged_dataset_is_a_named_error(saved: Path, name: str, content: bytes | None) -> None:
    file = saved / "train" / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(DataError, match="no dataset can be read there"):
        load_corpus(saved, BYTES, 4, 0)


def test_column_of_what_is_no_dataset_is_a_named_error(text: Path) -> None:
    with pytest.raises(DataError, match="--data-column is for datasets"):
        load_corpus(text, BYTES, 4, 0, column="text")


def test_training_and_evaluation_read_their_splits(
    saved: Path, train: Callable[..., Any], text: Path
) -> None:
    flags = ("--sequence-length", "16", "--batch", "2", "--backend", "eager", "--steps", "1")
    held_out = ("--eval-data", str(saved), "--eval-split", "test", "--eval-batches", "1")
    status, lines, errors = train("--data", str(saved), *flags, *held_out)
    assert status == 0, errors
    assert [line["event"] for line in lines if "event" in line] == ["start", "evaluation"]
    status, _, errors = train("--data", str(text), *flags, "--eval-data", str(saved))
    assert status == 1
    assert "no split 'validation'; " in errors


_GROWTH = """
import resource, sys
from pathlib import Path
from trnx.jobs.corpus import load_corpus

small, large = map(Path, sys.argv[1:])
load_corpus(small, "bytes", 16, 0).batch(0, 64)
pages = int(Path("/proc/self/statm").read_text().split()[5])
limit = pages * resource.getpagesize() + (96 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
load_corpus(large, "bytes", 16, 0).batch(0, 64)
"""


def test_memory_does_not_grow_with_the_dataset(tmp_path: Path) -> None:
    for name, rows in (("small", 10), ("large", 1100)):
        data = datasets.Dataset.from_dict({"text": ["tensor engines " * 8000] * rows})
        data.save_to_disk(tmp_path / name)
    command = [sys.executable, "-c", _GROWTH, str(tmp_path / "small"), str(tmp_path / "large")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
