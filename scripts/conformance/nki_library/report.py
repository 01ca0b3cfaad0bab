"""What the result of each case counts as, the table of them and the numbers of the bar."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fork_server import KILLED, is_out_of_memory
from known_failures import known_failure
from suite import NOT_FOR_TARGET, TOO_LARGE, Collected, file_of

from trnx.simulator.findings import ALWAYS_WARNINGS

BAR = 0.985
NO_VERDICT = ("no verdict: memory", "no verdict: time", "no verdict: killed")
PASSED = ("passed", "passed, spills")
COLUMNS = (*PASSED, "failed", "known failure", *NO_VERDICT, "skipped", NOT_FOR_TARGET)
_PREFIX = "test/integration/nkilib/"


def short_name(case: str) -> str:
    """A case or file without the folder that all have."""
    return case.removeprefix(_PREFIX)


def status_of(result: dict[str, Any]) -> str:
    """The column of a result; "failed" for everything that is not known to be something else."""
    if result["status"] == "passed":
        return PASSED["spills" in result]
    if result["status"] == "skipped":
        return NO_VERDICT[0] if TOO_LARGE in result["message"] else "skipped"
    if result["status"] == KILLED:
        return NO_VERDICT[2]
    if is_out_of_memory(result) and not result.get("simulating", True):
        return NO_VERDICT[0]
    if result["status"] == "timeout" and not result.get("simulating", True):
        return NO_VERDICT[1]
    return "known failure" if known_failure(result["case"], result["message"]) else "failed"


def findings_of(result: dict[str, Any]) -> list[str]:
    """Findings of a passing case, but those on which the sources disagree and what spills."""
    if result["status"] != "passed":
        return []
    return [
        text
        for text in result.get("findings", ())
        if not any(f"[{check}]" in text for check in (*ALWAYS_WARNINGS, "capacity"))
    ]


def print_table(results: list[dict[str, Any]], found: Collected) -> Counter[str]:
    """A row for each file; the totals."""
    files = sorted({file_of(result["case"]) for result in results})
    print(f"{'file':62}" + "".join(f"{column:>20}" for column in COLUMNS))
    total: Counter[str] = Counter()
    for file in files:
        counts = Counter(status_of(r) for r in results if r["case"].startswith(f"{file}::"))
        counts[NOT_FOR_TARGET] = sum(found.others.get(file, {}).values())
        total += counts
        print(f"{short_name(file):62}" + _cells(counts))
    print(f"{'total':62}" + _cells(total))
    return total


def _cells(counts: Counter[str]) -> str:
    return "".join(f"{counts[column]:20}" for column in COLUMNS)


def print_failures(results: list[dict[str, Any]]) -> None:
    """What did not pass, with the reason where there is one."""
    for result in sorted(results, key=lambda r: str(r["case"])):
        status = status_of(result)
        if status in (*PASSED, "skipped"):
            continue
        print(f"{status:18} {short_name(result['case'])}")
        row = known_failure(result["case"], result["message"])
        if row is not None:
            print(f"    {row.whose}: {row.reason}")
        print(f"    {' '.join(result['message'].split())[:300]}")


def summary(
    results: list[dict[str, Any]], counts: Counter[str], not_imported: int, misfits: list[str]
) -> dict[str, Any]:
    """The numbers that the bar is judged by. `misfits` are patches that do not fit the checkout."""
    passed = sum(counts[column] for column in PASSED)
    judged = passed + counts["failed"] + counts["known failure"]
    unjudged = sum(counts[column] for column in NO_VERDICT)
    numbers = {
        **{column: counts[column] for column in COLUMNS},
        "no verdict": unjudged,
        "rate": round(passed / judged, 4) if judged else 0.0,
        "rate with no verdict as failure": (
            round(passed / (judged + unjudged), 4) if judged else 0.0
        ),
        "passing cases with findings": sum(bool(findings_of(result)) for result in results),
        "not imported": not_imported,
        "patches that do not apply": len(misfits),
    }
    wrong = ("failed", "passing cases with findings", "not imported", "patches that do not apply")
    numbers["ok"] = numbers["rate"] >= BAR and not any(numbers[name] for name in wrong)
    return numbers
