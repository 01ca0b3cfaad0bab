"""What a warm-up job did to the compile cache, from the last line of each of its pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trnx.eks.cache_run import parse_line
from trnx.eks.cluster.logs import Follow, rank_lines
from trnx.eks.errors import AbsentError, EksError
from trnx.eks.model import TrnxJob

# A pod's report is its last line; libraries may say something more while they end.
LAST_LINES = 50


@dataclass(frozen=True)
class WarmReport:
    """Sums over the pods; `hits` is None where a pod could not tell."""

    neffs: int
    hits: int | None
    misses: int
    fetched: int
    stored: int
    pods: int
    silent: tuple[int, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return dict(self.__dict__)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def check_match(warm: TrnxJob, job: TrnxJob) -> None:
    """A warm-up fills what the job reads.

    Raises:
        EksError: it compiles for another image, type or LNC, or into another cache.
    """
    pairs = {
        "image": (warm.image, job.image),
        "instance": (warm.instance, job.instance),
        "lnc": (warm.the_lnc, job.the_lnc),
        "cache": (warm.the_cache, job.the_cache),
        "cache_s3": (warm.cache_s3, job.cache_s3),
    }
    wrong = [
        f"{key} ({ours} and {theirs})" for key, (ours, theirs) in pairs.items() if ours != theirs
    ]
    if wrong:
        raise EksError(
            f"{warm.name} does not warm what {job.name} reads: they differ in {', '.join(wrong)}; "
            "write the same in both files"
        )


def gather(source: Follow, ranks: int) -> WarmReport:
    """Read the reports. `silent` are ranks whose log has none, or is gone.

    Raises:
        ClusterError: the logs cannot be read.
    """
    reports: dict[int, dict[str, Any]] = {}
    for rank in range(ranks):
        try:
            found = [report for line in rank_lines(source, rank) if (report := parse_line(line))]
        except AbsentError:
            continue
        if found:
            reports[rank] = found[-1]
    known = list(reports.values())
    counted = [report.get("hits") for report in known]
    whole = bool(known) and all(isinstance(hits, int) for hits in counted)
    return WarmReport(
        neffs=max((_whole(report.get("neffs_after")) for report in known), default=0),
        hits=sum(_whole(hits) for hits in counted) if whole else None,
        misses=sum(_whole(report.get("misses")) for report in known),
        fetched=sum(_whole(report.get("fetched")) for report in known),
        stored=sum(_whole(report.get("stored")) for report in known),
        pods=len(known),
        silent=tuple(rank for rank in range(ranks) if rank not in reports),
        warnings=tuple(str(said) for report in known for said in report.get("warnings") or ()),
    )
