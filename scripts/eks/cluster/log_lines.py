"""Lines of a log, each once: what an answer of the server repeats of an earlier one is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import urllib3

_STAMP = re.compile(
    r"(?P<stamp>(?P<seconds>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(?P<part>\d+))?"
    r"(?P<zone>Z|[+-]\d\d:\d\d))(?: (?P<said>.*))?",
    re.DOTALL,
)


@dataclass
class Position:
    """How far a pod's log was read: the last stamp, lines with that stamp, and lines in all."""

    stamp: str = ""
    at_stamp: int = 0
    lines: int = 0

    def query(self) -> dict[str, str]:
        """What asks for the lines from here on; whole seconds, as the server takes them."""
        if not self.stamp:
            return {}
        moment = datetime.fromisoformat(self.stamp).astimezone(UTC)
        return {"sinceTime": moment.strftime("%Y-%m-%dT%H:%M:%SZ")}


@dataclass
class Sieve:
    """Leaves out, in one answer, what was printed before."""

    position: Position
    same: int = 0
    seen: int = 0
    start: Position = field(init=False)

    def __post_init__(self) -> None:
        now = self.position
        self.start = Position(now.stamp, now.at_stamp, now.lines)

    def line(self, raw: str) -> str | None:
        """The line without its stamp; None for one that was printed before."""
        found = _STAMP.fullmatch(raw)
        self.seen += 1
        if found is None:
            if not self.start.stamp and self.seen <= self.start.lines:
                return None
            self.position.lines += 1
            return raw
        stamp, said = found["stamp"], found["said"] or ""
        if self.start.stamp and _key(stamp) <= _key(self.start.stamp):
            if _key(stamp) < _key(self.start.stamp):
                return None
            self.same += 1
            if self.same <= self.start.at_stamp:
                return None
        now = self.position
        now.at_stamp = now.at_stamp + 1 if stamp == now.stamp else 1
        now.stamp = stamp
        now.lines += 1
        return said


def _key(stamp: str) -> tuple[str, str]:
    """Orders stamps of one zone, which a pod's are; fractions have any number of digits."""
    found = _STAMP.fullmatch(stamp)
    assert found is not None
    return found["seconds"], (found["part"] or "").ljust(9, "0")


def whole_lines(answer: urllib3.HTTPResponse) -> Iterator[str]:
    """Whole lines of an answer; an unfinished last one only where the answer ended well."""
    left = b""
    for part in answer.stream(1 << 16, decode_content=True):
        left += part
        *lines, left = left.split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if left:
        yield left.decode(errors="replace")
