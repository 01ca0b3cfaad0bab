"""One NKI region for concrete sizes: bind, run the kernel, and run in eager where it cannot.

A kernel may refuse sizes that the plan did not know (`supports` is asked again), or fail in the
simulator. Then the region's own ops run in eager and the ledger says so; with `fallback="error"` a
named error is raised. Results go to memory that nobody else sees until the kernel has ended, so
nothing is half-written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import fx

from trnx.backend.errors import KernelFailedError, KernelRefusedError
from trnx.backend.memory import Frame
from trnx.backend.runners import Prepared, Runner
from trnx.backend.shapes import Symbols, UnknownSizeError, concrete, concrete_spec
from trnx.fx_passes.advice import FAILED, LIMIT
from trnx.fx_passes.nodes import op_name
from trnx.fx_passes.region import KernelMatch, Refuse, Region, RegionFunction
from trnx.fx_passes.source import source_line
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.host_memory import plain
from trnx.simulator.memory.tensor_spec import TensorSpec

log = logging.getLogger(__name__)

_CPU = torch.device("cpu")


def concrete_bindings(match: KernelMatch, symbols: Symbols) -> tuple[Bindings, tuple[str, ...]]:
    """The bindings for `symbols`, and the names of those that are made contiguous first.

    Raises UnknownSizeError where a size depends on data.
    """
    values: dict[str, Any] = {}
    copied: list[str] = []
    for name, value in match.bindings.items():
        if not _is_tensor(value):
            values[name] = _constant(value, symbols)
            continue
        spec = concrete_spec(value.meta["val"], symbols)
        if not spec.is_contiguous and name not in match.kernel.strided:
            copied.append(name)
        if spec.is_contiguous or name in copied:
            spec = TensorSpec.dense(spec.shape, spec.dtype)
        values[name] = spec
    return Bindings(values), tuple(copied)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _constant(value: Any, symbols: Symbols) -> Any:
    if isinstance(value, fx.Node):
        return concrete(value.meta["val"], symbols)
    if isinstance(value, (list, tuple)):
        return type(value)(_constant(item, symbols) for item in value)
    return value


def _read(node: fx.Node, is_copied: bool) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What makes the kernel's tensor of the value of `node`; None where it is that value.

    Kernels read memory. Only views set the negative bit, and the graph's inputs have the bits of
    their metadata, so the metadata tells where memory is not the value.
    """
    known = node.meta["val"]
    if known.is_neg() or known.is_conj():
        return lambda value: plain(value).contiguous() if is_copied else plain(value)
    return torch.Tensor.contiguous if is_copied else None


def values_read(region: Region) -> tuple[fx.Node, ...]:
    """What the call of an NKI region takes: the tensors that its kernel binds, and all inputs, of
    which eager makes the results where the kernel fails."""
    bound = () if region.match is None else region.match.bindings.values()
    return tuple(dict.fromkeys((*filter(_is_tensor, bound), *region.inputs)))


def describe(region: Region) -> tuple[str, str]:
    """Op and user's line of a region, for messages: those of its last node that has a line."""
    named = [(op_name(n), source_line(n)) for n in region.nodes]
    return next(((op, line) for op, line in reversed(named) if line), named[-1])


@dataclass(frozen=True)
class Place:
    """Where a result goes: to buffer `buffer` of the frame, or to new memory where that is None."""

    spec: TensorSpec
    buffer: int | None

    @property
    def new_memory(self) -> Callable[[], torch.Tensor] | None:
        """What makes the memory of one call where the frame has none, without a Python function."""
        if self.buffer is not None:
            return None
        spec = self.spec
        return partial(torch.empty_strided, spec.shape, spec.strides, dtype=spec.dtype, device=_CPU)


class KernelCall:
    """Callable as `call(frame, *values)`, values being those of `nodes`; returns the outputs.

    `eager()` gives the function that runs the region's ops in torch, `refuse(reason)` writes the
    ledger; with `strict` a named error is raised instead.
    """

    def __init__(
        self,
        region: Region,
        places: Mapping[fx.Node, Place],
        runner: Runner,
        hw: Hardware,
        symbols: Symbols,
        *,
        eager: Callable[[], RegionFunction],
        refuse: Refuse,
        strict: bool,
    ) -> None:
        assert region.match is not None
        self._region = region
        self._match = region.match
        self._eager = eager
        self._refuse = refuse
        self._strict = strict
        self.copied: tuple[str, ...] = ()
        self.prepared: Prepared | None = None
        # Results without elements need no kernel.
        if all(not places[node].spec.numel for node in region.outputs):
            self.prepared = Prepared(lambda inputs, outputs: None, matmul_flops=0)  # noqa: ARG005
        else:
            self._prepare(runner, hw, symbols)
        self._wire(places)

    def _prepare(self, runner: Runner, hw: Hardware, symbols: Symbols) -> None:
        kernel = self._match.kernel
        try:
            bindings, self.copied = concrete_bindings(self._match, symbols)
        except UnknownSizeError as error:
            self._reject(f"{kernel.name} needs strides that depend on data ({error})")
            return
        if rejected := kernel.supports(bindings, hw):
            self._reject(f"{kernel.name} refuses the sizes of this call: {rejected.reason}")
            return
        try:
            self.prepared = runner.prepare(kernel, bindings, hw)
        except Exception as error:  # noqa: BLE001  the fallback boundary
            self._fail(error)

    def _reject(self, reason: str) -> None:
        if self._strict:
            op, line = describe(self._region)
            raise KernelRefusedError(
                f"{op} at {line or 'unknown line'}: {reason}. Use fallback='auto', or sizes that "
                "the kernel takes"
            )
        self._refuse(reason, LIMIT)

    def _fail(self, error: Exception) -> None:
        name = self._match.kernel.name
        if self._strict:
            op, line = describe(self._region)
            raise KernelFailedError(
                f"kernel {name} failed for {op} at {line or 'unknown line'}: {error}. "
                "Use fallback='auto' to run this region in eager"
            ) from error
        log.warning("kernel %s failed; its region %s runs in eager", name, self._region.name,
                    exc_info=error)  # fmt: skip
        self._refuse(f"kernel {name} failed: {type(error).__name__}: {error}", FAILED)

    def _wire(self, places: Mapping[fx.Node, Place]) -> None:
        """Positions, so that a call looks nothing up by name."""
        bound = {n: v for n, v in self._match.bindings.items() if _is_tensor(v)}
        self.nodes = values_read(self._region)
        position = {node: index for index, node in enumerate(self.nodes)}
        self._tensors = [(position[v], _read(v, n in self.copied)) for n, v in bound.items()]
        self._inputs = [position[node] for node in self._region.inputs]
        results = self._match.results
        wanted = [None if node is None else places[node] for node in results]
        self._results: list[tuple[int | None, Callable[[], torch.Tensor] | None]] = [
            (None, None) if place is None else (place.buffer, place.new_memory) for place in wanted
        ]
        self._places = wanted
        self._returned = [results.index(node) for node in self._region.outputs]
        self._returns_all = self._returned == list(range(len(results)))

    def __call__(self, frame: Frame, *values: Any) -> list[torch.Tensor]:
        prepared = self.prepared
        if prepared is None:
            return list(self._eager()([values[i] for i in self._inputs]))
        # Loops: under Dynamo a comprehension costs a Python call in Python 3.11, and a small kernel
        # as much as ten of them.
        tensors = []
        for i, read in self._tensors:
            tensors.append(values[i] if read is None else read(values[i]))
        try:
            computed = None if prepared.compute is None else prepared.compute(tensors)
            if computed is not None:
                outputs = self._placed(frame, computed)
            else:
                outputs = []
                for buffer, new_memory in self._results:
                    if new_memory is not None:
                        outputs.append(new_memory())
                    else:
                        outputs.append(None if buffer is None else frame[buffer])
                prepared.run(tensors, outputs)
        except Exception as error:  # noqa: BLE001  the fallback boundary
            return self._instead(error, values)
        return outputs if self._returns_all else [outputs[i] for i in self._returned]

    def _placed(self, frame: Frame, results: Sequence[torch.Tensor]) -> list[Any]:
        """Results in memory of their own where the plan has them: as they are where they may stay
        there, and lie as planned."""
        outputs: list[Any] = []
        for result, place in zip(results, self._places, strict=True):
            if place is None:
                outputs.append(None)
            elif place.buffer is None and TensorSpec.of(result) == place.spec:
                outputs.append(result)
            else:
                make = place.new_memory
                memory = frame[cast(int, place.buffer)] if make is None else make()
                outputs.append(memory.copy_(result.reshape(place.spec.shape)))
        return outputs

    def _instead(self, error: Exception, values: Sequence[Any]) -> list[torch.Tensor]:
        """The region in eager, which raises its own error where the user's values are at fault."""
        results = list(self._eager()([values[i] for i in self._inputs]))
        self._fail(error)
        self.prepared = None
        return results
