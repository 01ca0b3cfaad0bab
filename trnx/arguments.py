"""Arguments and options that commands of `trnx` share, and their values."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Target(StrEnum):
    """Trainium generations."""

    TRN1 = "trn1"
    TRN2 = "trn2"
    TRN3 = "trn3"


class Dtype(StrEnum):
    """Dtypes of the demo's model."""

    FP32 = "fp32"
    BF16 = "bf16"


class Runner(StrEnum):
    """What executes the NKI regions."""

    SIMULATOR = "simulator"
    REFERENCE = "reference"


class Fallback(StrEnum):
    """Who runs what no kernel takes."""

    AUTO = "auto"
    XLA = "xla"
    EAGER = "eager"
    ERROR = "error"


class Select(StrEnum):
    """Where NKI kernels are taken."""

    PROFIT = "profit"
    LEGAL = "legal"
    NONE = "none"


class Against(StrEnum):
    """What `bisect` compares regions with."""

    EAGER = "eager"
    FLOAT64 = "float64"


class PlanMode(StrEnum):
    """What a planned step does."""

    TRAIN = "train"
    PREFILL = "prefill"
    DECODE = "decode"


class PlanOptimizer(StrEnum):
    """What a planned training keeps for each weight."""

    ADAMW_FP32 = "adamw-fp32"
    ADAMW = "adamw"
    SGD = "sgd"


class PlanPrecision(StrEnum):
    """Dtype of a planned model."""

    BF16 = "bf16"
    FP32 = "fp32"


TargetOption = Annotated[Target, typer.Option(help="The Trainium generation to compile for.")]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(help="Its arguments; after `--` also those that trnx has an option for."),
]
ExampleArgument = Annotated[
    str,
    typer.Argument(
        help="MODULE:FUNCTION or FILE.py:FUNCTION; the function takes nothing and returns "
        "(model, args) or (model, args, kwargs)."
    ),
]
AsCompiledOption = Annotated[
    Target | None, typer.Option(help="The generation; else as compiled, else trn2.")
]
FallbackOption = Annotated[Fallback | None, typer.Option(help="Who runs what no kernel takes.")]
SelectOption = Annotated[
    Select | None, typer.Option(help="NKI where it pays, wherever it can, or nowhere.")
]
HtmlOption = Annotated[
    Path | None, typer.Option(help="Write one page to look at, which needs a browser alone.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def given(**asked: StrEnum | None) -> dict[str, str]:
    """The options of the backend that were asked for."""
    return {name: value.value for name, value in asked.items() if value is not None}
