"""`nki.language`: tensors, ranges, program ids, constants. Operators are in
`tile_operators`, tile maths in `tiles`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from trnx.simulator.errors import IllegalInstructionError, KernelSubsetError
from trnx.simulator.frontend import tiles
from trnx.simulator.frontend.simulator import current
from trnx.simulator.frontend.tile_operators import ops
from trnx.simulator.frontend.tile_size import TileSize
from trnx.simulator.isa import debug
from trnx.simulator.isa.arguments import explained
from trnx.simulator.isa.copy import memset, tensor_copy
from trnx.simulator.isa.dma import dma_copy
from trnx.simulator.kernel_lines import kernel_location
from trnx.simulator.language.indexing import DynamicSlice
from trnx.simulator.language.nki_object import NKIObject
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory import dtypes
from trnx.simulator.memory.arrays import from_numpy
from trnx.simulator.memory.storage import HBM, ON_CHIP, MemoryRegion
from trnx.simulator.older_dialects import GUIDE

Shape = Sequence[int]


def is_hbm(buffer: Any) -> bool:
    """True for private and shared HBM."""
    return region(buffer) in HBM


def is_on_chip(buffer: Any) -> bool:
    """True for SBUF and PSUM."""
    return region(buffer) in ON_CHIP


def is_psum(buffer: Any) -> bool:
    """True for PSUM."""
    return region(buffer) is MemoryRegion.psum


def is_sbuf(buffer: Any) -> bool:
    """True for SBUF."""
    return region(buffer) is MemoryRegion.sbuf


def region(buffer: Any) -> MemoryRegion:
    """The memory region itself; None stands for SBUF."""
    if isinstance(buffer, MemoryRegion):
        return buffer
    if buffer is None:
        return MemoryRegion.sbuf
    regions = {"hbm": MemoryRegion.private_hbm, **{one.value: one for one in MemoryRegion}}
    gone = ""
    if buffer in regions:
        gone = f": a string, gone since NKI 0.3 ({GUIDE}#nki-0-3-0-update-guide); write nl.{buffer}"
    names = ", ".join(f"nl.{name}" for name in regions)
    return current("buffer").illegal(f"buffer={buffer!r}{gone or f' must be one of {names}'}")


def ndarray(
    shape: Shape,
    dtype: Any,
    buffer: Any = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """A new tensor with unknown content; `address` is (first partition, byte in the partition)."""
    where = buffer if type(buffer) is MemoryRegion else region(buffer)
    return current("ndarray").allocate(shape, dtype, where, name, address)


def full(
    shape: Shape, fill_value: float, dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """A new tensor filled with one value."""
    where = region(buffer)
    tensor = ndarray(shape, dtype, where, name)
    if where in ON_CHIP:
        memset(tensor, fill_value)
        return tensor
    # HBM is filled by DMA from one row of SBUF.
    row = ndarray((1, 1), dtype, MemoryRegion.sbuf)
    memset(row, fill_value)
    source = NkiTensor(row.storage, row.dtype, (1, tensor.size), (row.pitch, 0))
    dma_copy(tensor, source)
    return tensor


def zeros(shape: Shape, dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Shape, dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """A new tensor with the shape of `x`, and its dtype and buffer unless given."""
    return ndarray(x.shape, dtype or x.dtype, x.storage.buffer if buffer is None else buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Like `empty_like`, filled with zeros."""
    return zeros(x.shape, dtype or x.dtype, x.storage.buffer if buffer is None else buffer, name)


def shared_constant(constant: Any) -> NkiTensor:
    """A tensor in shared HBM that holds a numpy array (or the array in a `.npy` file)."""
    array = np.load(constant) if isinstance(constant, str) else np.asarray(constant)
    _require_shared(array)
    return _constant(array, MemoryRegion.private_hbm)


def _require_shared(array: np.ndarray[Any, Any]) -> None:
    """The programs of a grid share the constants of a line, in the order in which they make them:
    the data are the same.
    """
    simulator, line = current("shared_constant"), kernel_location()
    core = simulator.core
    core.constants[line] += 1
    made = (array.shape, str(array.dtype), array.tobytes())
    number = core.constants[line]
    if simulator.constants.setdefault((line, number), made) != made:
        raise IllegalInstructionError(
            "legality",
            f"shared_constant: program {core.index} gives other data than another one here, but "
            "all share the constant; make it without nl.program_id, and compute with that after",
            line,
        )


def shared_identity_matrix(
    n: int, dtype: Any = dtypes.uint8, dst: NkiTensor | None = None
) -> NkiTensor:
    """The identity matrix [n, n] in SBUF, made at compile time; one per size and dtype."""
    if dst is not None:
        tensor_copy(dst, shared_identity_matrix(n, dst.dtype))
        return dst
    kind = dtypes.resolve(dtype)
    simulator = current("shared_identity_matrix")
    key = (n, str(kind))
    if key not in simulator.identities:
        simulator.identities[key] = _constant(np.eye(n), MemoryRegion.sbuf, kind)
    return simulator.identities[key]


def _constant(
    array: np.ndarray[Any, Any], buffer: MemoryRegion, dtype: dtypes.DType | None = None
) -> NkiTensor:
    values = from_numpy(array)
    kind = dtype or dtypes.resolve(values.dtype)
    simulator = current("constant")
    tensor = simulator.allocate(tuple(values.shape), kind, buffer)
    tensor.storage.keep()
    simulator.initialised.mark_all(tensor.storage)
    tensor.torch_view().copy_(values)
    return tensor


# ---- loops and programs ----


def ds(start: Any, size: int) -> Any:
    """`size` elements from `start`, which may be a register."""
    return slice(start, start + size) if isinstance(start, int) else DynamicSlice(start, size)


def _unrolled(start: int, stop: int | None = None, step: int = 1) -> range:
    """`range(start, stop, step)`: the body is recorded for every value."""
    return range(start) if stop is None else range(start, stop, step)


affine_range = sequential_range = static_range = _unrolled


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[Any]:
    """A loop that runs on the device: the body is recorded once, with a register as counter."""
    low, high = (0, start) if stop is None else (start, stop)
    return current("dynamic_range").loops.counted(low, high, step)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: int = 1) -> None:
    """`for i in range(lower, upper, step): body_fun(i)`, with registers as bounds and counter."""
    current("fori_loop").loops.fori(lower, upper, step, body_fun)


def while_loop(init: VirtualRegister, body_fun: Callable[[Any], Any]) -> None:
    """`r = init; while r: r = body_fun(r)`."""
    current("while_loop").loops.while_loop(init, body_fun)


def program_ndim() -> int:
    """Dimensions of the launch grid; 0 without a grid."""
    return len(current("program_ndim").grid)


def program_id(axis: int = 0) -> int:
    """Index of this program along `axis` of the grid; 0 without a grid."""
    simulator = current("program_id")
    grid = simulator.grid or (1,)
    _require_axes((axis,), grid)
    return int(np.unravel_index(simulator.core.index, grid)[axis])


def num_programs(axes: Any = 0) -> int:
    """Programs along the axes of the grid; 1 without a grid."""
    grid = current("num_programs").grid or (1,)
    chosen = axes if isinstance(axes, tuple | list) else (axes,)
    _require_axes(chosen, grid)
    return int(np.prod([grid[axis] for axis in chosen]))


def _require_axes(axes: Sequence[Any], grid: Sequence[int]) -> None:
    for axis in axes:
        if not isinstance(axis, int) or not -len(grid) <= axis < len(grid):
            raise KernelSubsetError(
                "kernel-subset",
                f"axis {axis!r} of a launch grid with {len(grid)} dimensions",
                kernel_location(),
            )


class _NoReorder:
    """`with nl.no_reorder():` keeps program order, which the simulator always does; register loops
    cannot stand in it.
    """

    def __enter__(self) -> None:
        current("no_reorder").loops.ordered_blocks += 1

    def __exit__(self, *exception: object) -> None:
        current("no_reorder").loops.ordered_blocks -= 1


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print the tensor whenever the Program runs."""
    if not isinstance(print_prefix, str):
        raise KernelSubsetError(
            "kernel-subset", "device_print: the prefix must be a constant string", kernel_location()
        )
    debug.device_print(tensor, print_prefix)


def namespace() -> dict[str, Any]:
    """The members of nki.language."""
    functions = (
        is_hbm, is_on_chip, is_psum, is_sbuf, full, zeros, ones, empty_like, zeros_like,
        shared_constant, shared_identity_matrix, ds, dynamic_range, fori_loop, while_loop,
        program_ndim, program_id, num_programs, device_print,
    )  # fmt: skip
    regions = {member.name: member for member in MemoryRegion}
    return {
        **{str(dtype): dtype for dtype in dtypes.DTYPES},
        "bool_": dtypes.bool_,
        **regions,
        "hbm": MemoryRegion.private_hbm,
        "MemoryRegion": MemoryRegion,
        "NKIObject": NKIObject,
        "NkiTensor": NkiTensor,
        "tile_size": TileSize(),
        **ops(),
        **{function.__name__: explained("tile", function) for function in functions},
        # A class, because kernels also annotate with it: `x: nl.ndarray | None`.
        "ndarray": _NdarrayAlias,
        "range": range,
        "affine_range": _unrolled,
        "sequential_range": _unrolled,
        "static_range": _unrolled,
        "no_reorder": _NoReorder,
        **{name: explained("tile", function) for name, function in tiles.FUNCTIONS.items()},
    }


class _NdarrayMeta(type):
    """Makes `nl.ndarray(...)` allocate, while `nl.ndarray` is a type for annotations and
    isinstance.
    """

    __call__ = staticmethod(explained("tile", ndarray))

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, NkiTensor)


class _NdarrayAlias(metaclass=_NdarrayMeta):
    """`nl.ndarray`."""

    # `inspect` takes the first parameter of a metaclass's `__call__` for the class.
    __signature__ = inspect.signature(ndarray)
