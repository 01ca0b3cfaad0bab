"""The way into `trnx eks`: imports what the extra `eks` brings only when the command runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from trnx.eks.errors import EksError, MissingExtraError
from trnx.eks.redaction import redacted, show_traceback

# Import names of the packages that the extra brings.
EXTRA = frozenset(
    {
        "celpy",
        "jsonschema",
        "kubernetes",
        "kubernetes_validate",
        "pydantic",
        "pydantic_core",
        "yaml",
    }
)


def run(arguments: Sequence[str]) -> None:
    """Run `trnx eks` with arguments; ends the process with the command's status.

    Raises:
        MissingExtraError: a package of the extra is not installed.
    """
    try:
        from trnx.eks.cli import app

        try:
            app(list(arguments), prog_name="trnx eks")
        finally:
            # typer has set a hook of its own.
            sys.excepthook = show_traceback
    except EksError as error:
        if "--json" in arguments:
            print(json.dumps(redacted(error.to_dict())))
        raise
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRA:
            raise
        fix = "run: pip install 'trnx[eks]' (in a checkout: pip install -e '.[eks]')"
        raise MissingExtraError(f"`trnx eks` needs the package {error.name}; {fix}") from error
    sys.exit(0)
