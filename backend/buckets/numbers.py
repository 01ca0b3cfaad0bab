"""Numbers of a call: the exact value of every symbolic expression that a specialisation reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trnx.backend.shapes import Symbols, concrete
from trnx.backend.torch_internals import expression
from trnx.fx_passes.symbolic import symbols_of


class Numbers:
    """Collects expressions; `evaluate` gives their values in the order of their places."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}

    def place(self, value: Any) -> int:
        """Where the value of a symbolic number, or of a plain one, will be."""
        return self._places.setdefault(expression(value), len(self._places))

    def evaluate(self, symbols: Symbols) -> tuple[int | float, ...]:
        """The values for the sizes of a call."""
        return tuple(_value(form, symbols) for form in self._places)

    @staticmethod
    def is_known(value: Any, symbols: Collection[Any]) -> bool:
        """True where the symbols determine the value."""
        return symbols_of(value).issubset(symbols)


def _value(form: Any, symbols: Symbols) -> int | float:
    return form if isinstance(form, (int, float)) else concrete(form, symbols)
