"""What all ranks have to agree on: an error of one of them is raised on each, and none waits.

A `group` has every rank of the job; None means the default one, which belongs to the main thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from trnx.jobs.devices import Ranks
from trnx.jobs.errors import SaveError

T = TypeVar("T")


def gathered(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """The values of all ranks, by rank."""
    if not dist.is_initialized():
        return [value]
    everyone: list[T] = [value] * dist.get_world_size()
    dist.all_gather_object(everyone, value, group=group)
    return everyone


def from_first(value: T, group: dist.ProcessGroup | None = None) -> T:
    """The first rank's value, on all ranks."""
    if not dist.is_initialized():
        return value
    choice = [value]
    dist.broadcast_object_list(choice, src=0, group=group)
    return choice[0]


def first_does(
    ranks: Ranks, action: Callable[[], None], group: dist.ProcessGroup | None = None
) -> None:
    """The first rank acts on files; all ranks go on when it has.

    Raises SaveError on every rank where the system refuses.
    """
    problem = None
    if ranks.is_first:
        try:
            action()
        except OSError as error:
            problem = f"{error.filename or ''} {error.strerror}".strip()
    if problem := from_first(problem, group):
        raise SaveError(problem)
