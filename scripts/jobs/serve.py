"""Serve sentence embeddings and generated text over HTTP, with dynamic batching in few shapes.

    python scripts/jobs/serve.py --embed minilm --generate llama-tiny --port 8000

/health answers from the start; /ready once all shapes are compiled; /metrics is for Prometheus.
SIGTERM (or SIGINT) makes /ready fail, and after --drain-delay-seconds ends the listening; requests
in flight are answered within --grace-seconds. Standard output has one JSON line for each event:
listening, ready, stopped. Exit status:

    0   ended by a signal, and every request in flight was answered
    1   a named error, or requests that --grace-seconds cut
    2   flags that cannot be parsed
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from trnx.jobs.errors import MissingJobsExtraError
from trnx.simulator.errors import TrnxError

# Import names of what the extra brings for this job.
_EXTRA = frozenset({"fastapi", "prometheus_client", "pydantic", "starlette", "uvicorn"})


def serve(arguments: Sequence[str] | None) -> int:
    """Serve until a signal; the exit status. Raises TrnxError."""
    from trnx.jobs.serve_flags import parse

    description = (__doc__ or "").partition("\n\n")[0]
    settings = parse(description, arguments)
    try:
        from trnx.jobs.server import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        raise MissingJobsExtraError(
            f"this job needs the package {error.name}: pip install 'trnx[jobs]'"
        ) from None
    return asyncio.run(run(settings))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; named errors end with their message and status 1."""
    try:
        return serve(arguments)
    except TrnxError as error:
        print(f"serve: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
