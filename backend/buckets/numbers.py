"""Numbers of a call: the exact value of every symbolic expression that a specialisation reads."""

from __future__ import annotations

from typing import Any

from trnx.backend.shapes import Symbols, UnknownSizeError, concrete
from trnx.backend.torch_internals import expression


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
    def is_known(value: Any, symbols: Symbols) -> bool:
        """True where the symbols determine the value."""
        try:
            concrete(value, symbols)
        except UnknownSizeError:
            return False
        return True


def _value(form: Any, symbols: Symbols) -> int | float:
    return form if isinstance(form, (int, float)) else concrete(form, symbols)
