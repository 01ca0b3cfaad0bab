"""`NKIObject`, the base of kernels' configuration classes; `tile_size`, the target's constants."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


class _NKIType(type):
    """Takes keywords for class attributes without annotation too, also where `@dataclass` made the
    constructor, which knows annotated fields alone; nki-library's kernels do this.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        later = {name: kwargs.pop(name) for name in list(kwargs) if cls._is_plain(name)}
        missing = [] if args else cls._not_given(kwargs)
        made = super().__call__(*args, **kwargs, **dict.fromkeys(missing))
        for name, value in later.items():
            object.__setattr__(made, name, value)
        for name in missing:
            # What the constructor left at its stand-in has no value yet.
            if vars(made).get(name, cls) is None:
                object.__delattr__(made, name)
        return made

    def _not_given(cls, given: dict[str, Any]) -> list[str]:
        """Fields of a dataclass without default and without value: they may be set later."""
        fields: dict[str, Any] = getattr(cls, "__dataclass_fields__", {})
        if not fields:
            return []
        parameters = _constructor(cls)
        return [
            name
            for name in fields
            if name not in given
            and name in parameters
            and parameters[name].default is inspect.Parameter.empty
        ]

    def _is_plain(cls, name: str) -> bool:
        annotated = any(name in vars(base).get("__annotations__", {}) for base in cls.__mro__)
        if annotated or name.startswith("_") or callable(getattr(cls, name, cls)):
            return False
        return name not in _constructor(cls)


def _constructor(kind: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a class's constructor."""
    return inspect.signature(kind.__init__).parameters


class NKIObject(metaclass=_NKIType):
    """Classes with annotated fields get a keyword constructor, unless they define their own. A
    field that is not given and has no default may be set later.
    """

    def __init__(self, **kwargs: Any) -> None:
        fields = self._fields()
        unknown = [name for name in kwargs if name not in fields]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {unknown[0]!r}")
        for name in fields:
            if name in kwargs:
                setattr(self, name, kwargs[name])

    @classmethod
    def _fields(cls) -> list[str]:
        names: dict[str, None] = {}
        for base in reversed(cls.__mro__):
            names.update(dict.fromkeys(vars(base).get("__annotations__", {})))
        return list(names)
