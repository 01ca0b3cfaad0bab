"""Rows of Hugging Face `datasets` on disk: a folder of `save_to_disk`, or an `.arrow` file.

Rows are mapped from disk and read a few at a time. Nothing is downloaded, and nothing is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnx.jobs.errors import DataError, MissingJobsExtraError

TOKENS = "input_ids"
TEXT = "text"
# One of these files is in a folder of `save_to_disk`: a dataset's, or that of several splits.
_DATASET, _SPLITS = "state.json", "dataset_dict.json"
_ROWS = 64


@dataclass(frozen=True)
class Rows:
    """One column: texts, or lists of tokens."""

    path: Path
    column: str
    has_tokens: bool
    dataset: Any

    def __iter__(self) -> Iterator[Any]:
        """The rows in their order. Raises DataError for one that is null."""
        number = 0
        for batch in self.dataset.iter(batch_size=_ROWS):
            for row in batch[self.column]:
                if row is None:
                    raise DataError(f"--data {self.path}: row {number} of {self.column} is null")
                number += 1
                yield row


def is_arrow_data(path: Path) -> bool:
    """Whether a path is what this module reads."""
    if path.is_dir():
        return any((path / name).is_file() for name in (_DATASET, _SPLITS))
    return path.suffix == ".arrow" and path.is_file()


def open_rows(path: Path, split: str, column: str | None) -> Rows:
    """A column of a dataset: the one that is named, else `input_ids`, else `text`.

    Raises DataError for what cannot be read, and MissingJobsExtraError without `datasets`.
    """
    dataset = _open(path, split)
    if column is None:
        column = next((name for name in (TOKENS, TEXT) if name in dataset.column_names), TEXT)
    if column not in dataset.column_names:
        raise DataError(
            f"--data {path}: no column {column!r}; --data-column names one of "
            f"{', '.join(dataset.column_names)}"
        )
    kind = str(dataset.features[column])
    texts, tokens = _is_text(dataset.features[column]), _is_tokens(dataset.features[column])
    if not texts and not tokens:
        raise DataError(f"--data {path}: {column} holds neither texts nor lists of tokens: {kind}")
    return Rows(path, column, tokens, dataset.select_columns([column]).with_format(None))


def _is_text(feature: Any) -> bool:
    return getattr(feature, "dtype", None) in ("string", "large_string")


def _is_tokens(feature: Any) -> bool:
    inner = getattr(getattr(feature, "feature", None), "dtype", "")
    return inner.removeprefix("u").startswith("int")


def _open(path: Path, split: str) -> Any:
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import datasets
    except ModuleNotFoundError as error:
        if error.name != "datasets":
            raise
        raise MissingJobsExtraError(
            f"--data {path} needs the package datasets: pip install 'trnx[training]'"
        ) from None
    try:
        if path.is_file():
            return datasets.Dataset.from_file(str(path))
        found = datasets.load_from_disk(str(path))
    # What is damaged, or has no rows, is not checked there, and fails somewhere below.
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"--data {path}: no dataset can be read there ({error})") from None
    if not isinstance(found, datasets.DatasetDict):
        return found
    if split not in found:
        raise DataError(
            f"--data {path}: no split {split!r}; --data-split names one of {', '.join(found)}"
        )
    return found[split]
