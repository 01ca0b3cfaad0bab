"""`Options`: everything a user can set, validated on creation.

`torch.compile(model, backend="trnx", options={"target": "trn1"})`. Precedence: `options=`, then the
`TRNX_*` variables, then the defaults below.

| option | values | meaning |
|---|---|---|
| target | trn1, trn2, trn3 (or an alias) | the generation to compile for |
| fallback | auto, xla, eager, error | who runs what no kernel takes; error: nobody, raise instead |
| select | profit, legal, none | NKI where it pays, wherever it can, or nowhere |
| runner | auto, neuron, simulator, reference | the device (auto: if there is one), or a stand-in |
| check | none, eager, float64 | compare every region with its ops, and raise where it differs |
| buckets | auto, exact, or a list of sizes | what dynamic sizes are padded to, where safe |
| lnc | 1, 2 (not on trn1) | physical cores of a logical core, which share each kernel's work |

Where nobody gives `lnc`, it is that of the runtime on a device, and 1 on stand-ins.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from trnx.backend.buckets.sizes import Buckets, parse_buckets
from trnx.backend.environment import PREFIX, option_defaults
from trnx.backend.errors import InvalidOptionError, OptionError, UnknownOptionError
from trnx.backend.neuron.stack import LNC_VARIABLE, device_lnc
from trnx.simulator.hardware import DEFAULT_TARGET, Hardware, hardware, targets

Fallback = Literal["auto", "xla", "eager", "error"]
Select = Literal["profit", "legal", "none"]
Runner = Literal["auto", "neuron", "simulator", "reference"]
Check = Literal["none", "eager", "float64"]

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "fallback": get_args(Fallback),
    "select": get_args(Select),
    "runner": get_args(Runner),
    "check": get_args(Check),
}
_BUCKETS = ("auto", "exact", "a list of positive sizes such as [64, 128]")


@dataclass(frozen=True)
class Options:
    """See the module's docstring. Raises InvalidOptionError or UnknownTargetError on creation."""

    target: str = DEFAULT_TARGET
    fallback: Fallback = "auto"
    select: Select = "profit"
    runner: Runner = "auto"
    check: Check = "none"
    buckets: Buckets = "auto"
    lnc: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.target, str):
            raise InvalidOptionError("target", self.target, targets())
        # The canonical name, so that an alias shares compiled kernels with it.
        object.__setattr__(self, "target", hardware(self.target).target)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise InvalidOptionError(name, getattr(self, name), choices)
        buckets = parse_buckets(self.buckets)
        if buckets is None:
            raise InvalidOptionError("buckets", self.buckets, _BUCKETS)
        object.__setattr__(self, "buckets", buckets)
        allowed = hardware(self.target).lnc
        lnc = parse_lnc(self.lnc)
        if lnc not in allowed:
            raise InvalidOptionError(f"lnc on {self.target}", self.lnc, tuple(map(str, allowed)))
        object.__setattr__(self, "lnc", lnc)
        if self.check != "none" and self.runner == "auto":
            object.__setattr__(self, "runner", "simulator")
        if self.check != "none" and self.runner == "neuron":
            raise OptionError(
                f"check={self.check!r} compares regions in host memory, and the runner 'neuron' "
                "runs whole graphs on the device; use runner='simulator' or leave `check` out"
            )

    @property
    def hardware(self) -> Hardware:
        """The record of the target, with the cores of a logical core."""
        return on_cores(self.target, self.lnc)


@functools.cache
def on_cores(target: str, lnc: int) -> Hardware:
    """The record of `target` for kernels on `lnc` physical cores."""
    return replace(hardware(target), cores=lnc)


def parse_lnc(given: Any) -> int | None:
    """The number of cores, also from its text in a variable; None for anything else."""
    text = str(given)
    return int(text) if text.isdecimal() else None


def option_names() -> tuple[str, ...]:
    """Names of all options."""
    return tuple(field.name for field in fields(Options))


def make_options(
    given: Mapping[str, Any] | Options | None = None, environment: Mapping[str, str] | None = None
) -> Options:
    """Options from what the user gave, the environment and the defaults.

    Raises UnknownOptionError, InvalidOptionError or UnknownTargetError.
    """
    if isinstance(given, Options):
        return given
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(f"options must be a dictionary, not {type(given).__name__}")
    names = option_names()
    if unknown := [str(key) for key in given or {} if key not in names]:
        raise UnknownOptionError(unknown, names)
    defaults = option_defaults(names, environment)
    for name, choices in _CHOICES.items():
        if name in defaults and defaults[name] not in choices:
            raise InvalidOptionError(PREFIX + name.upper(), defaults[name], choices)
    if "buckets" in defaults and parse_buckets(defaults["buckets"]) is None:
        raise InvalidOptionError(PREFIX + "BUCKETS", defaults["buckets"], _BUCKETS)
    if "lnc" in defaults and parse_lnc(defaults["lnc"]) is None:
        raise InvalidOptionError(PREFIX + "LNC", defaults["lnc"], ("1", "2"))
    values = {**defaults, **(given or {})}
    options = Options(**values)
    return options if "lnc" in values else _as_on_device(options, environment)


def _as_on_device(options: Options, environment: Mapping[str, str] | None) -> Options:
    """With the LNC of the device that it is for, since a launch on another number of cores fails
    there. Raises InvalidOptionError for a value that the target does not have."""
    configured = device_lnc(options.runner, options.target, environment)
    if configured is None:
        return options
    allowed = hardware(options.target).lnc
    if (lnc := parse_lnc(configured)) not in allowed:
        raise InvalidOptionError(LNC_VARIABLE, configured, tuple(map(str, allowed)))
    return replace(options, lnc=lnc)
