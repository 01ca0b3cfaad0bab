"""The contract of a kernel: what a module registers, and what passes and executable rely on.

A kernel family is one module with one `KernelSpec`. Three parts of trnx use it:

* `fx_passes` traces `Pattern.function` and finds it in the canonical graph; the names of its
  parameters become bindings.
* `partition` asks `supports` (legality, with the sizes that are known or hinted at compile time)
  and `cost`.
* the executable asks `launch` with concrete sizes, traces the NKI kernel once for them, and replays
  it. The reference runner calls `reference` in place of the kernel.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import torch

from trnx.nki_kernels.errors import KernelSpecError
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.lru_cache import LruCache
from trnx.simulator.memory.tensor_spec import TensorSpec

# The last parameter of a kernel that shares its work between the programs of a launch.
CORES = "cores"


class Bindings(Mapping[str, Any]):
    """Values of a pattern's parameters by name: a `TensorSpec` for a tensor, else the Python value.

    Kernels read them as attributes: `b.x.shape`, `b.eps`.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no binding {name!r}; there are {sorted(self._values)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Bindings({self._values})"


@dataclass(frozen=True)
class Cost:
    """Work of one kernel call; costs add up. A multiply-add is two FLOPs; bytes are HBM traffic."""

    matmul_flops: int = 0
    vector_flops: int = 0
    hbm_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.matmul_flops + other.matmul_flops,
            self.vector_flops + other.vector_flops,
            self.hbm_bytes + other.hbm_bytes,
        )


@dataclass(frozen=True)
class Launch:
    """One call of an NKI kernel for concrete sizes.

    `arguments` are the kernel's positional arguments in order: `TensorSpec` for a tensor (with the
    name of its binding in `tensor_names`, same order), anything else is a trace-time constant.
    The kernel returns exactly what the pattern's root returns: same number of tensors, shapes,
    dtypes; where `result_orders` is given, with the dimensions of each result in that order.

    `grid` is how many programs run it, one on each physical core of the logical core; `cores` of
    them share its work. Where that is one, the others do nothing if the kernel knows of cores
    (`knows_cores`), and the same as the first if it does not.

    `unknown_trips`: how often predictions take a loop to run whose count only a run knows; 0 where
    it repairs what values out of the ordinary spoil.
    """

    kernel: Any
    arguments: tuple[Any, ...]
    tensor_names: tuple[str, ...]
    result_orders: tuple[tuple[int, ...], ...] = ()
    grid: int = 1
    cores: int = 1
    knows_cores: bool = False
    unknown_trips: int = 1

    @classmethod
    def of(cls, kernel: Any, b: Bindings, names: Iterable[str], *constants: Any) -> Launch:
        """`kernel` with the bindings of these `names` as its arguments, followed by `constants`."""
        bound = {name: b[name] for name in names}
        tensors = tuple(name for name, value in bound.items() if isinstance(value, TensorSpec))
        return cls(kernel, (*bound.values(), *constants), tensors)

    def on(self, grid: int, cores: int) -> Launch:
        """The same by `grid` programs, `cores` of which share the work; a kernel has the number in
        its last parameter, `cores`, or cannot share. One program is told nothing. What a kernel's
        own `launch` said already stays."""
        if grid == 1 or self.grid > 1:
            return self
        parameters = list(kernel_parameters(self.kernel).values())
        if not parameters or parameters[-1].name != CORES:
            return replace(self, grid=grid)
        left_out = (parameter.default for parameter in parameters[len(self.arguments) : -1])
        given = (*self.arguments, *left_out, cores)
        return replace(self, arguments=given, grid=grid, cores=cores, knows_cores=True)

    def on_first(self, grid: int) -> Launch:
        """The same by `grid` programs, of which the kernel lets the first do all."""
        return self if grid == 1 else replace(self, grid=grid, knows_cores=True)


class Kernel(Protocol):
    """What partition and the executable need of a kernel, hand-written or generated."""

    @property
    def name(self) -> str:
        """Unique name, shown in reports."""

    @property
    def strided(self) -> frozenset[str]:
        """Names of the bindings that may be non-contiguous; others are made contiguous first."""

    def supports(self, b: Bindings, hw: Hardware, /) -> Reject | None:
        """None where the kernel takes these bindings on `hw`, else why not."""

    def cost(self, b: Bindings, /) -> Cost:
        """Work of one call."""

    def launch(self, b: Bindings, hw: Hardware, /) -> Launch:
        """The NKI kernel and its arguments for these bindings, which `supports` accepts."""

    def reference(self, **values: Any) -> Any:
        """The same mathematics in torch: binding name -> tensor or value."""


@dataclass(frozen=True)
class Pattern:
    """Canonical ATen calls as a Python function.

    Its parameters are bindings: annotated `torch.Tensor` (or not annotated) matches a tensor node,
    `torch.Tensor | None` also a literal None, anything else (`int`, `float`, `bool`, `list[int]`)
    matches a constant. Literals in the body must be equal in the graph. `constants` are added to
    the bindings of a match, so that one spec can serve variants of one pattern.
    """

    function: Callable[..., Any]
    constants: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """Inputs for the generic tests: binding name -> tensor or value; `note` names the edge.

    `error` is the absolute difference that kernel and reference may have besides the rounding of
    sums and results: a bound, computed from the values, for rounded intermediates or cancellation.
    """

    values: Mapping[str, Any]
    note: str = ""
    error: float = 0.0


# By weak reference, so that generated kernels can leave.
_PARAMETERS: LruCache[Mapping[str, inspect.Parameter]] = LruCache(1024)


def kernel_parameters(kernel: Any) -> Mapping[str, inspect.Parameter]:
    """Name -> parameter of an NKI function."""
    function = getattr(kernel, "function", kernel)
    try:
        key = weakref.ref(function)
    except TypeError:  # what is no function may not allow it
        return inspect.signature(function).parameters
    return _PARAMETERS.get_or_make(key, lambda: inspect.signature(function).parameters)


@dataclass(frozen=True)
class LaunchByName:
    """The launch of a kernel whose parameters are named like the bindings."""

    kernel: Any

    def __call__(self, b: Bindings, hw: Hardware) -> Launch:
        """`kernel` with the bindings as its arguments."""
        del hw
        names = (name for name in kernel_parameters(self.kernel) if name != CORES)
        return Launch.of(self.kernel, b, names)


@dataclass(frozen=True)
class LaunchOnCores:
    """The launch that `given` makes, by as many programs as the logical core has cores."""

    given: Callable[[Bindings, Hardware], Launch]

    def __call__(self, b: Bindings, hw: Hardware) -> Launch:
        """All cores share the work where the kernel can."""
        return self.given(b, hw).on(hw.cores, hw.cores)

    def on_one(self, b: Bindings, hw: Hardware) -> Launch:
        """The first core does the work, planned for one, and the others nothing."""
        return self.given(b, replace(hw, cores=1)).on(hw.cores, 1)


# Former name of an argument of `KernelSpec` -> its name.
_RENAMED = {"guard": "supports", "torch_reference": "reference", "work": "cost", "plan": "launch"}


@dataclass(frozen=True)
class KernelSpec:
    """A hand-written kernel, a `Kernel`. See the module's docstring, and `docs/adding_a_kernel.md`.

    `kernel` is the `@nki.jit` function; its parameters are named like the bindings, unless `launch`
    computes its arguments (kernel variant, layout flags) from them. A last parameter `cores: int =
    1` is the number of programs that share the work (`kernels/_cores.py`).
    `other_shares` makes launches in which the cores share other parts of the work than in `launch`;
    the fastest by schedule is taken.
    `samples(generator)` yields seeded inputs with edge shapes. `fuses`: smaller kernels can do the
    same one after another, and this one is chosen where it is predicted to be faster than they.
    `is_operator`: the reference is operators of torch on sums of products, which take the place of
    the steps that the simulator recorded where they are proven to compute the same. A binding
    `activation` names the last one, of `activations.py`.
    """

    name: str
    patterns: tuple[Pattern, ...]
    supports: Callable[[Bindings, Hardware], Reject | None]
    reference: Callable[..., Any]
    cost: Callable[[Bindings], Cost]
    samples: Callable[[torch.Generator], Iterable[Sample]]
    kernel: Any
    launch: Callable[[Bindings, Hardware], Launch] = None  # type: ignore[assignment]  # by name
    other_shares: Callable[[Bindings, Hardware], Iterable[Launch]] | None = None
    strided: frozenset[str] = frozenset()
    fuses: bool = False
    is_operator: bool = False
    builtin: bool = False  # set by the registry: a kernel of this package

    def __new__(cls, *_: Any, **parts: Any) -> Self:
        """Raises KernelSpecError where an argument has its former name."""
        old = [name for name in _RENAMED if name in parts]
        if old:
            raise KernelSpecError(
                f"kernel {parts.get('name', '')}: KernelSpec has no {', '.join(old)}; "
                + "; ".join(f"write `{_RENAMED[name]}=` for `{name}=`" for name in old)
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        given: Any = self.launch
        if isinstance(given, LaunchOnCores):  # of a spec that `replace` copies
            return
        found = LaunchByName(self.kernel) if given is None else given
        object.__setattr__(self, "launch", LaunchOnCores(found))

    def other_launches(self, b: Bindings, hw: Hardware) -> tuple[Launch, ...]:
        """Other launches in which the cores share the work."""
        found = () if self.other_shares is None else self.other_shares(b, hw)
        return tuple(launch.on(hw.cores, hw.cores) for launch in found)

    def launch_on_one(self, b: Bindings, hw: Hardware) -> Launch:
        """The launch in which one core has all the work, of a kernel that knows of cores."""
        launch: Any = self.launch
        found: Launch = launch.on_one(b, hw)
        return found
