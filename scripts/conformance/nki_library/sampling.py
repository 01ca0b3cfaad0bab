"""Which cases of the suite are run."""

from __future__ import annotations

import random
import re


def select(
    cases: dict[str, list[str]], pattern: str, count: int, seed: int
) -> dict[str, list[str]]:
    """The cases that have a match of `pattern`, by file; `count` of them at random, 0 for all."""
    matching = {
        file: [case for case in listed if re.search(pattern, case)]
        for file, listed in cases.items()
    }
    matching = {file: listed for file, listed in matching.items() if listed}
    return sample(matching, count, seed) if count else matching


def sample(cases: dict[str, list[str]], count: int, seed: int) -> dict[str, list[str]]:
    """`count` cases, one of each file first, then by the number of cases."""
    generator = random.Random(seed)
    shuffled = {file: generator.sample(cases[file], len(cases[file])) for file in sorted(cases)}
    order = generator.sample(sorted(shuffled), len(shuffled))
    chosen = {file: shuffled[file][:1] for file in order[:count]}
    rest = [case for file in sorted(chosen) for case in shuffled[file][1:]]
    for case in generator.sample(rest, max(0, min(count - len(chosen), len(rest)))):
        chosen[case.partition("::")[0]].append(case)
    return dict(sorted(chosen.items()))
