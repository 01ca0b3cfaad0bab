"""How grave a finding is. Only errors set the exit status, with `--strict` warnings too.

error: the API server refuses the object, or it cannot start, or must fail, provable from the file;
or a secret is given away. warning: likely to fail, or to cost money. advice: could be better.
"""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """Of a finding, gravest first."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"


# Rules whose findings are no errors, unless the finding says so itself.
_LEVELS = {
    Level.WARNING: (
        "access-mode",
        "device-resource",
        "dra-version",
        "foreign-env",
        "fork-safe",
        "grace",
        "host-access",
        "multi-node",
        "nodepool",
        "pinned-image",
        "preemption",
        "reference",
        "restart-policy",
        "rollout",
        "runtime-env",
        "s3-cache",
        "secret-in-file",
        "shared-memory",
        "spot-resume",
        "suspended",
        "toleration",
        "trainjob-node",
        "unknown-instance",
    ),
    Level.ADVICE: ("pod-security",),
}
_OF_RULE = {rule: level for level, rules in _LEVELS.items() for rule in rules}


def level_of(rule: str) -> Level:
    """The level of a rule's findings, unless a finding has its own."""
    return _OF_RULE.get(rule, Level.ERROR)
