"""A graph module whose code is generated when it is first called or read.

Most regions are looked at and generated from, and never called: to generate the `forward` of each
of the hundreds of parts of an optimizer's step takes longer than to plan it.
"""

from __future__ import annotations

from typing import Any

from torch import fx


class LazyModule(fx.GraphModule):
    """A graph module like any other, but that it cannot be pickled."""

    def recompile(self) -> Any:
        """Leave the code to the first call."""
        self.__dict__.pop("_code", None)
        # A graph module has a class of its own, so that it can have a method of its own.
        type(self).forward = _first_call

    def __getattr__(self, name: str) -> Any:
        if name == "_code":
            fx.GraphModule.recompile(self)
            return self.__dict__[name]
        return super().__getattr__(name)


def _first_call(self: LazyModule, *args: Any) -> Any:
    fx.GraphModule.recompile(self)
    return self.forward(*args)
