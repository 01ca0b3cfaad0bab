"""The modules `nki`, `nki.language`, `nki.isa`, ... that twins import, made of the simulator's
parts.
"""

from __future__ import annotations

import difflib
import functools
import re
import threading
from collections.abc import Mapping
from enum import Enum
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from trnx.simulator.errors import UnknownNkiNameError
from trnx.simulator.frontend import kernel, nki_language
from trnx.simulator.frontend.tile_operators import ops
from trnx.simulator.isa import collectives
from trnx.simulator.isa.instruction import INSTRUCTIONS
from trnx.simulator.isa.namespace import namespace
from trnx.simulator.memory import dtypes
from trnx.simulator.older_dialects import changed_name

# An attribute of every module made here; twins use these and leave other packages' alone.
MARK = "__trnx__"
_lock = threading.RLock()
# What Python says of an import that fails.
_IMPORTED = re.compile(
    r"cannot import name '(?P<name>\w+)' from '(?P<owner>[\w.]+)'|"
    r"No module named '(?P<module>(?:neuronxcc\.)?nki\.[\w.]+)'"
)
# Where a name is looked for that another module does not have.
_MAIN = ("nki.isa", "nki.language", "nki.collectives", "nki")


class _NkiModule(ModuleType):
    """A module that says which name was meant."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        raise UnknownNkiNameError(f"{self.__name__} has no {name!r}{_meant(self, name)}")


def _meant(module: ModuleType, name: str) -> str:
    """What to write for `name`: what became of an older dialect's, the same name of another module,
    or the nearest ones here.
    """
    change = changed_name(module.__name__, name)
    if change is not None:
        return f"; {change}"
    modules = _nki_modules()
    for other in _MAIN:
        if name in vars(modules[other]):
            return f"; did you mean {other}.{name}?"
    known = [one for one in vars(module) if not one.startswith("_")]
    near = difflib.get_close_matches(name, known, n=2)
    if near:
        return f"; did you mean {' or '.join(f'{module.__name__}.{one}' for one in near)}?"
    return "; docs/nki_api.md lists the names"


def unknown_import(error: ImportError) -> UnknownNkiNameError | None:
    """What `from nki.language import par_dim` and `import neuronxcc.nki.kernels.attention` meant;
    None for what is no name of NKI. Python keeps no message of a module's `__getattr__` for these.
    """
    found = _IMPORTED.search(str(error))
    if found is None:
        return None
    owner, name = (found["owner"], found["name"]) if found["name"] else _parent(found["module"])
    module = _nki_modules().get(owner.removeprefix("neuronxcc."))
    if module is None:
        return None
    return UnknownNkiNameError(f"{owner} has no {name!r}{_meant(module, name)}")


def _parent(module: str) -> tuple[str, str]:
    owner, _, name = module.rpartition(".")
    return owner, name


def nki_modules() -> Mapping[str, ModuleType]:
    """Module name -> module, also under `neuronxcc.nki`: the same in every thread. Instructions and
    operators that were declared since the last call, outside of this package, are there too.
    """
    with _lock:
        modules = _nki_modules()
        vars(modules["nki.isa"]).update(INSTRUCTIONS)
        language = vars(modules["nki.language"])
        language.update((name, op) for name, op in ops().items() if name not in language)
        return modules


@functools.cache
def _nki_modules() -> Mapping[str, ModuleType]:
    isa = make_module("nki.isa", namespace())
    dtype_names = {str(dtype): dtype for dtype in dtypes.DTYPES} | {"bool_": dtypes.bool_}
    constants = {
        name: value
        for name, value in vars(isa).items()
        if isinstance(value, type) and issubclass(value, Enum)
    }
    tree: dict[str, dict[str, Any]] = {
        "nki": {
            "jit": kernel.jit,
            "simulate": kernel.simulate,
            "simulate_kernel": _simulate_kernel,
            "baremetal": kernel.jit,
            "benchmark": kernel.jit,
            "profile": kernel.jit,
            "trace": kernel.jit,
        },
        "nki.language": nki_language.namespace(),
        "nki.isa": vars(isa),
        "nki.isa.constants": constants,
        "nki.collectives": collectives.namespace(),
        "nki.dtype": dtype_names,
        "nki.typing": {"tensor": _AnyTensor(), "mutable_tensor": _AnyTensor()},
        "nki.experimental": {
            "while_loop": nki_language.while_loop,
            "fori_loop": nki_language.fori_loop,
        },
    }
    modules = {name: make_module(name, members) for name, members in tree.items()}
    _attach(modules)
    top = make_module("neuronxcc", {"nki": modules["nki"]})
    return modules | {"neuronxcc": top} | {f"neuronxcc.{n}": m for n, m in modules.items()}


def make_module(name: str, members: Mapping[str, Any]) -> ModuleType:
    """A package of these members."""
    module = _NkiModule(name)
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    setattr(module, MARK, True)
    vars(module).update({key: value for key, value in members.items() if not key.startswith("__")})
    return module


def _attach(modules: Mapping[str, ModuleType]) -> None:
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
            # `import nki.isa` needs a package, and `from nki.isa import constants` its attribute.
            modules[parent].__path__ = []


def _simulate_kernel(function: Any, *args: Any, **kwargs: Any) -> Any:
    return kernel.simulate(function)(*args, **kwargs)


class _AnyTensor:
    """`nt.tensor[...]` in annotations."""

    def __getitem__(self, item: Any) -> _AnyTensor:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"nki.typing.tensor has no attribute {name!r}")
        raise UnknownNkiNameError(
            "nki.typing.tensor[...] annotates a parameter and has no values; nki.benchmark of "
            "NKI 0.1 took it for an argument: pass an array, and measure with `trnx profile`"
        )
