"""The one reader of environment variables: `TRNX_<OPTION>` sets the default of an option.

`TRNX_TARGET=trn1 TRNX_RUNNER=reference python train.py`; an explicit `options=` entry wins. Any
other `TRNX_*` name may belong to another program: it is logged as a warning, once in a process,
with the nearest name, so that a misspelt one is not ignored in silence. `TRNX_CACHE_DIR` and
`TRNX_CACHE_SIZE` say where the compile cache is.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from trnx.backend.errors import InvalidOptionError

PREFIX = "TRNX_"

CACHE_DIR = "TRNX_CACHE_DIR"
CACHE_SIZE = "TRNX_CACHE_SIZE"
CACHE_OFF = "off"
# A plan has some tens of kilobytes, a prediction half of one.
_CACHE_MEGABYTES = 1024

# TRNX_CRD_SCHEMAS: the folder of Kubernetes schemas that `trnx eks` validates against.
_NO_OPTIONS = frozenset({"TRNX_CRD_SCHEMAS", CACHE_DIR, CACHE_SIZE})

_log = logging.getLogger(__name__)


def option_defaults(
    names: Iterable[str], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Option name -> value, for the `TRNX_*` variables that are set and not empty."""
    variables = os.environ if environment is None else environment
    valid = {PREFIX + name.upper(): name for name in names}
    given = {key: value for key, value in variables.items() if key.startswith(PREFIX) and value}
    for unknown in sorted(given.keys() - valid.keys() - _NO_OPTIONS):
        _warn(unknown, tuple(valid))
    return {valid[key]: value for key, value in given.items() if key in valid}


def cache_settings(environment: Mapping[str, str] | None = None) -> tuple[Path, int] | None:
    """Folder and most bytes of the compile cache, None where it is off.

    `TRNX_CACHE_DIR` is the folder, or `off`; `TRNX_CACHE_SIZE` the bound in megabytes. Raises
    InvalidOptionError for a bound that is no number above 0.
    """
    variables = os.environ if environment is None else environment
    given = variables.get(CACHE_DIR, "")
    if given.lower() == CACHE_OFF:
        return None
    size = variables.get(CACHE_SIZE) or str(_CACHE_MEGABYTES)
    if not size.isdecimal() or int(size) < 1:
        raise InvalidOptionError(CACHE_SIZE, size, ("a number of megabytes from 1",))
    if given:
        return Path(given).expanduser(), int(size) << 20
    try:
        base = Path(variables.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # no home
        return None
    return base / "trnx" / "compile", int(size) << 20


@functools.cache
def _warn(unknown: str, valid: tuple[str, ...]) -> None:
    """Once for each name."""
    (nearest,) = difflib.get_close_matches(unknown, valid, n=1, cutoff=0.0)
    _log.warning(
        "%s is no variable of trnx and is ignored; the nearest one is %s (all: %s)",
        unknown,
        nearest,
        ", ".join(valid),
    )
