"""Which cases of the suite are run."""

from __future__ import annotations

import random
import re

from suite import file_of

Cases = dict[str, list[str]]


def select(cases: Cases, pattern: str, count: int, seed: int, each: int = 0) -> Cases:
    """The cases that have a match of `pattern`, by file; `count` of them at random, 0 for all, but
    `each` of every folder where it has so many.
    """
    matching = {
        file: [case for case in listed if re.search(pattern, case)]
        for file, listed in cases.items()
    }
    matching = {file: listed for file, listed in matching.items() if listed}
    return sample(matching, count, seed, each) if count or each else matching


def sample(cases: Cases, count: int, seed: int, each: int = 0) -> Cases:
    """`count` cases: one of each file first, then until each folder has `each`, even where that is
    more than `count`, then by the number of cases.
    """
    generator = random.Random(seed)
    shuffled = {file: generator.sample(cases[file], len(cases[file])) for file in sorted(cases)}
    order = generator.sample(sorted(shuffled), len(shuffled))
    chosen = [shuffled[file][0] for file in (order if each else order[:count])]
    files = sorted({file_of(case) for case in chosen})
    rest = [case for file in files for case in shuffled[file][1:]]
    if each:
        missing = _missing(chosen, generator.sample(rest, len(rest)), each)
        chosen += missing
        rest = [case for case in rest if case not in missing]
    chosen += generator.sample(rest, max(0, min(count - len(chosen), len(rest))))
    return {file: [case for case in chosen if file_of(case) == file] for file in files}


def _missing(chosen: list[str], rest: list[str], each: int) -> dict[str, None]:
    """Those of `rest` that give each folder `each` cases."""
    counts: dict[str, int] = {}
    for case in chosen:
        counts[folder_of(case)] = counts.get(folder_of(case), 0) + 1
    found: dict[str, None] = {}
    for case in rest:
        folder = folder_of(case)
        if counts.get(folder, 0) < each:
            counts[folder] = counts.get(folder, 0) + 1
            found[case] = None
    return found


def folder_of(case: str) -> str:
    """The folder of a case's file."""
    return file_of(case).rpartition("/")[0]


def shard(cases: Cases, number: int, of: int) -> Cases:
    """The cases of one of `of` shards, which share those of a file out evenly; `number` is from
    1.
    """
    listed = [case for file in sorted(cases) for case in cases[file]]
    own = set(listed[number - 1 :: of])
    kept = {file: [case for case in found if case in own] for file, found in cases.items()}
    return {file: found for file, found in kept.items() if found}
