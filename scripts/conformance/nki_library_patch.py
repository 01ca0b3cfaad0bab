"""A repair of one file of nki-library's scratch copy, and edits that it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    """One repair: `edit` gets the file's text ("" where there is none) and returns the new one."""

    file: str
    reason: str
    edit: Callable[[str], str]


def replace(old: str, new: str) -> Callable[[str], str]:
    """Replace every `old`."""
    return lambda text: text.replace(old, new)


def replace_all(*pairs: tuple[str, str]) -> Callable[[str], str]:
    """Replace each first of a pair by its second."""

    def edit(text: str) -> str:
        for old, new in pairs:
            text = text.replace(old, new)
        return text

    return edit


def drop_second(start: str, end: str) -> Callable[[str], str]:
    """Drop what lies between the second `start` and the next `end`, both included."""

    def edit(text: str) -> str:
        first = text.find(start)
        second = text.find(start, first + 1)
        stop = text.find(end, second)
        return text if min(first, second, stop) < 0 else text[:second] + text[stop + len(end) :]

    return edit


def create(content: str) -> Callable[[str], str]:
    """Write a file that is missing."""
    return lambda text: text or content
