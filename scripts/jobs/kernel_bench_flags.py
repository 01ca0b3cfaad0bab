"""Flags of the kernel benchmark, read once into a frozen record."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trnx.jobs.errors import FlagError


@dataclass(frozen=True)
class BenchSettings:
    """What the flags say; see `--help`."""

    kernels: tuple[str, ...]
    load: tuple[Path, ...]
    target: str
    all_samples: bool
    runs: int
    use_device: bool
    json: bool

    def __post_init__(self) -> None:
        """Raises FlagError."""
        if self.runs < 1:
            raise FlagError("--runs must be at least 1")
        for file in self.load:
            if not file.is_file():
                raise FlagError(f"--load {file}: no such file")


def parse(description: str, arguments: Sequence[str] | None = None) -> BenchSettings:
    """Settings of a command line. Raises FlagError; argparse ends the process with status 2."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--kernel", action="append", default=[], help="a registered kernel; repeatable")
    add("--load", action="append", default=[], type=Path, help="a kernel file of yours to add")
    add("--target", default="trn2", choices=("trn1", "trn2", "trn3"))
    add("--all-samples", action="store_true", help="every sample, not the most expensive alone")
    add("--runs", type=int, default=20, help="measured calls on a device")
    add("--device", default="auto", choices=("auto", "none"), help="none: predict alone")
    add("--json", action="store_true", help="print one object as the last line")
    given = parser.parse_args(arguments)
    return BenchSettings(
        kernels=tuple(given.kernel),
        load=tuple(given.load),
        target=given.target,
        all_samples=given.all_samples,
        runs=given.runs,
        use_device=given.device == "auto",
        json=given.json,
    )
