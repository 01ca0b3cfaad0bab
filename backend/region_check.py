"""Compares every region with the same ops in eager, on the values that the region was given.

Where `options={"check": "eager"}` (or "float64") is set, the first region that differs raises
RegionDiffersError. While `collect_differences` is open, all that differ are collected instead, the
first call that differs of each. Regions of the eager engine, of random ops and of ops that write to
their arguments are not compared. Against float64 a region may be off by twice eager's own error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import fx

from trnx.backend.errors import RegionDiffersError
from trnx.backend.report import RegionReport
from trnx.fx_passes.extract import region_module
from trnx.fx_passes.nodes import is_mutation, is_random
from trnx.fx_passes.region import Region
from trnx.simulator.fork_locks import fork_lock
from trnx.simulator.memory.host_memory import plain

Reference = Literal["eager", "float64"]
Values = Sequence[Any]
# A multiple of the unit in the last place that sums in another order, and the rounding of a region
# once where eager rounds after each op, stay below.
_RTOL = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float64: 1e-9}
# Of the largest element: where terms cancel, the error is that of the terms.
_SHARE_OF_LARGEST = 0.1


@dataclass(frozen=True)
class Tolerance:
    """`|found - expected| <= atol + rtol * |expected|`, NaN and infinities in the same places.

    None stands for what floating arithmetic in another order can change: rtol 1e-4 for float32,
    3e-2 for bfloat16, 4e-3 for float16; atol a tenth of rtol times the largest element, and twice
    `noise`, the error of eager where that is known.
    """

    rtol: float | None = None
    atol: float | None = None

    def exceeded(
        self, found: torch.Tensor, expected: torch.Tensor, noise: float = 0.0
    ) -> Excess | None:
        """Where `found` differs by more, or None. Integers and booleans have to be equal."""
        if found.shape != expected.shape:
            text = f"shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
            return Excess(text, elements=expected.numel())
        if not expected.is_floating_point() and not expected.is_complex():
            return _worst(found, expected, torch.zeros((), dtype=torch.float64))
        rtol = _RTOL.get(found.dtype, 1e-4) if self.rtol is None else self.rtol
        size = _wide(expected).abs()
        finite = size[size.isfinite()]
        largest = float(finite.max()) if finite.numel() else 0.0
        usual = rtol * _SHARE_OF_LARGEST * largest + 2 * noise
        atol = usual if self.atol is None else self.atol
        return _worst(found, expected, atol + rtol * size)


@dataclass(frozen=True)
class Excess:
    """The element that is furthest beyond what is allowed, and how many are beyond it."""

    text: str
    elements: int
    difference: float = float("nan")
    allowed: float = float("nan")


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _worst(found: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor) -> Excess | None:
    a, b = _wide(found), _wide(expected)
    same = (a == b) | (a.isnan() & b.isnan())
    difference = (a - b).abs().nan_to_num(nan=float("inf"))
    limit = allowed.expand(difference.shape).nan_to_num(nan=0.0, posinf=0.0)
    wrong = ~same & (difference > limit)
    if not bool(wrong.any()):
        return None
    excess = torch.where(wrong, difference - limit, -1.0)
    index = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
    text = f"{found[index].item():g} at {list(index)}, expected {expected[index].item():g}"
    return Excess(text, int(wrong.sum()), float(difference[index]), float(limit[index]))


@dataclass(frozen=True)
class Difference:
    """A region whose values are not those of its ops.

    `output` is the name of the result, `elements` how many of its `numel` are beyond the tolerance,
    `difference` and `allowed` those of the worst one, `worst` the same as text.
    """

    graph: str
    region: str
    engine: str
    kernel: str | None
    label: str
    ops: tuple[str, ...]
    source: str
    output: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    numel: int
    difference: float
    allowed: float
    worst: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def __str__(self) -> str:
        limit = "" if self.allowed != self.allowed else f" (allowed {self.allowed:.2g})"
        return (
            f"{self.graph} {self.region} ({self.engine}: {self.label}) at "
            f"{self.source or 'unknown line'}: {self.elements} of {self.numel} elements of "
            f"{self.output} ({self.dtype}) differ, the worst by {self.difference:.3g}{limit}: "
            f"{self.worst}"
        )


@dataclass(frozen=True)
class Failure:
    """A difference, with what is needed to see it again."""

    difference: Difference
    region: Region
    inputs: tuple[Any, ...]


class Differences:
    """What an open collection has found. `compared` and `skipped` (region -> why) are by graph and
    region."""

    def __init__(self, against: Reference, tolerance: Tolerance) -> None:
        self.against: Reference = against
        self.tolerance = tolerance
        self.failures: list[Failure] = []
        self.compared: dict[str, None] = {}
        self.skipped: dict[str, str] = {}
        self._lock = fork_lock(self, threading.Lock)

    def saw(self, key: str, failure: Failure | None) -> None:
        """Note a comparison of the region `key`."""
        with self._lock:
            self.compared[key] = None
            known = {f"{f.difference.graph} {f.difference.region}" for f in self.failures}
            if failure is not None and key not in known:
                self.failures.append(failure)

    def skip(self, key: str, reason: str) -> None:
        """Note that the region `key` is not compared."""
        with self._lock:
            self.skipped[key] = reason


_open: list[Differences] = []


@contextmanager
def collect_differences(against: Reference, tolerance: Tolerance) -> Iterator[Differences]:
    """Compare the regions of every graph that is compiled while the block runs."""
    found = Differences(against, tolerance)
    _open.append(found)
    try:
        yield found
    finally:
        _open.remove(found)


def make_checker(option: str, graph: str, regions: dict[str, RegionReport]) -> RegionChecker | None:
    """What compares the regions of a graph, or None. An open collection comes before the option."""
    if _open:
        return RegionChecker(_open[-1], graph, regions, raises=False)
    if option == "none":
        return None
    reference: Reference = "float64" if option == "float64" else "eager"
    return RegionChecker(Differences(reference, Tolerance()), graph, regions, raises=True)


class RegionChecker:
    """Wraps the functions of a graph's regions."""

    def __init__(
        self,
        differences: Differences,
        graph: str,
        regions: dict[str, RegionReport],
        *,
        raises: bool,
    ) -> None:
        self._differences = differences
        self._graph = graph
        self._regions = regions
        self._raises = raises

    def wrapped(
        self, region: Region, nodes: Sequence[fx.Node], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """`function`, whose last arguments are the values of `nodes`, with the comparison."""
        key = f"{self._graph} {region.name}"
        reason = _why_not(region, self._regions[region.name])
        if reason is not None:
            self._differences.skip(key, reason)
            return function
        position = {node: index for index, node in enumerate(nodes)}
        order = [position[node] for node in region.inputs]
        reference = _reference(region, self._differences.against)

        def run(*arguments: Any) -> Any:
            values = arguments[len(arguments) - len(nodes) :]
            inputs = tuple(_kept(values[i]) for i in order)
            try:
                expected = reference(inputs)
            except Exception as error:  # noqa: BLE001  what is wrong with values, the region raises
                self._differences.skip(key, f"its ops fail in eager: {error}")
                return function(*arguments)
            found = function(*arguments)
            failure = self._failure(region, inputs, found, expected)
            self._differences.saw(key, failure)
            if failure is not None and self._raises:
                raise RegionDiffersError(
                    f"{failure.difference}. `trnx bisect SCRIPT.py` or trnx.bisect(model, *inputs) "
                    "writes this region as a program of its own"
                )
            return found

        return run

    def _failure(
        self, region: Region, inputs: tuple[Any, ...], found: Values, expected: Values
    ) -> Failure | None:
        for node, a, (b, noise) in zip(region.outputs, found, expected, strict=True):
            if not isinstance(b, torch.Tensor):
                continue
            a = a.detach()
            excess = self._differences.tolerance.exceeded(a, b, noise)
            if excess is None:
                continue
            entry = self._regions[region.name]
            difference = Difference(
                graph=self._graph,
                region=region.name,
                engine=entry.engine,
                kernel=entry.kernel,
                label=entry.label,
                ops=tuple(entry.ops),
                source=entry.source,
                output=node.name,
                dtype=str(a.dtype).removeprefix("torch."),
                shape=tuple(a.shape),
                elements=excess.elements,
                numel=a.numel(),
                difference=excess.difference,
                allowed=excess.allowed,
                worst=excess.text,
            )
            return Failure(difference, region, inputs)
        return None


def _why_not(region: Region, entry: RegionReport) -> str | None:
    if (entry.host_engine or region.engine) == "eager":
        return "it runs in eager"
    if region.engine == "collective":
        return "it is a collective between ranks"
    if any(is_random(node) for node in region.nodes):
        return "it draws random numbers"
    if any(is_mutation(node) for node in region.nodes):
        return "it writes to its arguments"
    return None


def _kept(value: Any) -> Any:
    """A value as it is before the region runs, whose kernel may be what writes to it."""
    if not isinstance(value, torch.Tensor):
        return value
    value = plain(value.detach())
    if not value.numel():
        return value
    sizes, strides = value.shape, value.stride()
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    memory = value.as_strided((span,), (1,)).clone()
    return memory.as_strided(sizes, strides, 0)


def _reference(region: Region, against: Reference) -> Callable[[Values], Values]:
    """What gives for each result its expected value and the error of eager, as far as known."""
    eager = region_module(region)
    wide = widened(region_module(region)) if against == "float64" else None

    def run(values: Values) -> Values:
        with torch.no_grad():
            plain_results = eager(*values)
            exact = plain_results if wide is None else _exact(wide, values, plain_results)
        return [(b, _largest_error(a, b)) for a, b in zip(plain_results, exact, strict=True)]

    return run


def _exact(wide: fx.GraphModule, values: Values, otherwise: Values) -> Values:
    """Floating results in float64; those of eager where an op has no float64 or they are none."""
    try:
        results = wide(*(_widened_value(value) for value in values))
    except Exception:  # noqa: BLE001  whatever an op has against float64
        return otherwise
    pairs = zip(results, otherwise, strict=True)
    return [a if isinstance(b, torch.Tensor) and _is_float(b.dtype) else b for a, b in pairs]


def _largest_error(found: Any, exact: Any) -> float:
    if not isinstance(found, torch.Tensor) or found is exact or not found.numel():
        return 0.0
    error = (_wide(found) - exact).abs()
    finite = error[error.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _is_float(dtype: Any) -> bool:
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point


def _widened_value(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


def widened(module: fx.GraphModule) -> fx.GraphModule:
    """The module for arguments in float64: its floating dtypes are float64 too."""

    def wide(argument: Any) -> Any:
        return torch.float64 if _is_float(argument) else argument

    for node in module.graph.nodes:
        node.args = fx.node.map_aggregate(node.args, wide)
        node.kwargs = fx.node.map_aggregate(node.kwargs, wide)
        if node.target in (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default):
            node.args = (*node.args[:2], False)
    module.recompile()
    return module
