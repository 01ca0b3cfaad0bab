"""`trnx cache explain`: what of a compilation is in the cache, and why the rest is not.

The model is compiled as `trnx explain` does it, without running kernels. An entry that is missing
is compared with the most similar one of its kind: the parts of the key in which they differ are
why it missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trnx.backend.cache.cache import Cache, Lookup
from trnx.backend.cache.commands import read_stored
from trnx.backend.cache.current import recorded, required
from trnx.backend.cache.entries import Key
from trnx.backend.cache.errors import DamagedEntryError

# Entries of a kind that are compared, the newest first.
_COMPARED = 2000
# Characters of a part that are shown.
_SHOWN = 60


@dataclass(frozen=True)
class Change:
    """A part of a key: its text in this process, and in the most similar entry."""

    part: str
    here: str
    there: str


@dataclass(frozen=True)
class Question:
    """One look-up. `changes` is empty for a hit, and where there is no entry of the kind."""

    kind: str
    entry: str
    outcome: str
    changes: tuple[Change, ...] = ()

    @property
    def reason(self) -> str:
        """Why it missed, in words."""
        if self.outcome != "miss":
            return _OUTCOMES[self.outcome]
        if not self.changes:
            return f"no {self.kind} was ever kept here"
        return "differs in " + ", ".join(map(_shown, self.changes))


_OUTCOMES = {
    "hit": "",
    "damaged": "is damaged, and is made again",
    "foreign": "is code that others could have written, and is made again",
}


@dataclass(frozen=True)
class CacheExplanation:
    """The look-ups of one compilation, in order."""

    folder: str
    questions: tuple[Question, ...]

    @property
    def hits(self) -> int:
        """How many entries were there."""
        return sum(question.outcome == "hit" for question in self.questions)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        questions = [{**asdict(one), "reason": one.reason} for one in self.questions]
        return {"folder": self.folder, "hits": self.hits, "questions": questions}

    def __str__(self) -> str:
        lines = [f"{self.folder}: {self.hits} of {len(self.questions)} entries are there"]
        same = Counter((one.kind, one.outcome, one.reason) for one in self.questions)
        for (kind, outcome, reason), count in same.items():
            lines.append(f"  {count:>4} {kind:<11}{outcome:<8}{reason}".rstrip())
        return "\n".join(lines)


def explain_cache(compile_model: Callable[[], object]) -> CacheExplanation:
    """What `compile_model()` finds in the cache. Nothing is written, so that it can be asked again.
    Raises CacheOffError."""
    cache = required()
    with cache.read_only(), recorded(cache) as lookups:
        compile_model()
    entries = _Entries(cache)
    found = tuple(_question(lookup, entries) for lookup in lookups)
    return CacheExplanation(str(cache.folder.path), found)


def _question(lookup: Lookup, entries: _Entries) -> Question:
    key = lookup.key
    changes: tuple[Change, ...] = ()
    if lookup.outcome == "miss" and (nearest := entries.nearest(key)) is not None:
        names = key.differs_from(nearest)
        changes = tuple(Change(n, key.parts.get(n, ""), nearest.get(n, "")) for n in names)
    return Question(key.kind.name, key.digest, lookup.outcome, changes)


class _Entries:
    """The keys of the entries, by kind."""

    def __init__(self, cache: Cache) -> None:
        self._keys: dict[str, list[Mapping[str, str]]] = {}
        stored = sorted(cache.folder.entries(), key=lambda one: -one.used)
        for one in stored:
            keys = self._keys.setdefault(one.path.parent.parent.name, [])
            if len(keys) < _COMPARED:
                try:
                    keys.append(read_stored(one).key.parts)
                except DamagedEntryError:
                    continue

    def nearest(self, key: Key) -> Mapping[str, str] | None:
        """The parts of the entry that differs in the fewest."""
        keys: Iterable[Mapping[str, str]] = self._keys.get(key.kind.name, ())
        return min(keys, key=lambda parts: len(key.differs_from(parts)), default=None)


def _shown(change: Change) -> str:
    if max(len(change.here), len(change.there)) > _SHOWN or change.part in ("graph", "shapes"):
        return change.part
    return f"{change.part} ({change.here or 'none'}; kept: {change.there or 'none'})"
