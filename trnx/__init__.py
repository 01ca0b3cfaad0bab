"""trnx: a torch.compile backend for AWS Trainium, with an NKI simulator for machines without one.

`torch.compile(model, backend="trnx")` needs no import of this package. What it offers is loaded on
first use: `trnx.explain`, `trnx.profile`, `trnx.bisect`, `trnx.export`, `trnx.load`, `trnx.report`,
`trnx.errors`, `trnx.Options`, `trnx.register_kernel`, `trnx.load_kernels`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trnx import errors
    from trnx.backend import report
    from trnx.backend.bisect import Bisection, bisect
    from trnx.backend.explain import Explanation, explain
    from trnx.backend.exported.load import Loaded, load
    from trnx.backend.exported.write import Exported, export
    from trnx.backend.model_profile import ModelProfile
    from trnx.backend.options import Options
    from trnx.backend.profile import profile
    from trnx.backend.report import collect_reports
    from trnx.nki_kernels.registry import load_kernels
    from trnx.nki_kernels.registry import register as register_kernel
    from trnx.simulator.errors import TrnxError
    from trnx.simulator.timing.profile import Profile

__version__ = "0.1.0"

__all__ = [
    "Bisection",
    "Explanation",
    "Exported",
    "Loaded",
    "ModelProfile",
    "Options",
    "Profile",
    "TrnxError",
    "bisect",
    "collect_reports",
    "errors",
    "explain",
    "export",
    "load",
    "load_kernels",
    "profile",
    "register_kernel",
    "report",
]

# Public name -> where it lives: a module, or a module and its attribute.
_PLACES = {
    "errors": ("trnx.errors", None),
    "report": ("trnx.backend.report", None),
    "bisect": ("trnx.backend.bisect", "bisect"),
    "Bisection": ("trnx.backend.bisect", "Bisection"),
    "explain": ("trnx.backend.explain", "explain"),
    "Explanation": ("trnx.backend.explain", "Explanation"),
    "export": ("trnx.backend.exported.write", "export"),
    "Exported": ("trnx.backend.exported.write", "Exported"),
    "load": ("trnx.backend.exported.load", "load"),
    "Loaded": ("trnx.backend.exported.load", "Loaded"),
    "collect_reports": ("trnx.backend.report", "collect_reports"),
    "Options": ("trnx.backend.options", "Options"),
    "Profile": ("trnx.simulator.timing.profile", "Profile"),
    "ModelProfile": ("trnx.backend.model_profile", "ModelProfile"),
    "profile": ("trnx.backend.profile", "profile"),
    "TrnxError": ("trnx.simulator.errors", "TrnxError"),
    "register_kernel": ("trnx.nki_kernels.registry", "register"),
    "load_kernels": ("trnx.nki_kernels.registry", "load_kernels"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'trnx' has no attribute {name!r}")
    module_name, attribute = _PLACES[name]
    module = import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
