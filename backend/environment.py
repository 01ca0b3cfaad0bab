"""The one reader of environment variables: `TRNX_<OPTION>` sets the default of an option.

`TRNX_TARGET=trn1 TRNX_RUNNER=reference python train.py`; an explicit `options=` entry wins. Any
other `TRNX_*` name may belong to another program: it is logged as a warning, once in a process,
with the nearest name, so that a misspelt one is not ignored in silence.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
from collections.abc import Iterable, Mapping

PREFIX = "TRNX_"

# TRNX_CRD_SCHEMAS: the folder of Kubernetes schemas that `trnx eks` validates against.
_NO_OPTIONS = frozenset({"TRNX_CRD_SCHEMAS"})

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
