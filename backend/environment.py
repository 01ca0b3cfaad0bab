"""The one reader of environment variables: `TRNX_<OPTION>` sets the default of an option.

`TRNX_TARGET=trn1 TRNX_RUNNER=reference python train.py`; an explicit `options=` entry wins. Other
`TRNX_*` names are errors, because a misspelt variable must not be ignored in silence; those in
`FOREIGN` belong to other tools of the project and are left alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from trnx.backend.errors import UnknownOptionError

PREFIX = "TRNX_"

# TRNX_CRD_SCHEMAS: the folder of Kubernetes schemas that the tests of trnx.eks validate against.
FOREIGN = frozenset({"TRNX_CRD_SCHEMAS"})


def option_defaults(
    names: Iterable[str], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Option name -> value, for the `TRNX_*` variables that are set and not empty.

    Raises UnknownOptionError for a variable that names no option.
    """
    variables = os.environ if environment is None else environment
    valid = {PREFIX + name.upper(): name for name in names}
    ours = {
        key: value
        for key, value in variables.items()
        if key.startswith(PREFIX) and key not in FOREIGN and value
    }
    if unknown := sorted(ours.keys() - valid.keys()):
        raise UnknownOptionError(unknown, sorted(valid))
    return {valid[key]: value for key, value in ours.items()}
