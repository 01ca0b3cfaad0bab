"""Which modes and shapes DMA takes: who makes descriptors, and the limits of a transpose by each.

Sources: the entries of dma_copy and dma_transpose in SDK nki.isa, and
SDK/nki/deep-dives/nki-dge.rst.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from trnx.simulator.findings import DISPUTED_LEGALITY
from trnx.simulator.isa.instruction import Emit
from trnx.simulator.language.enums import DgeMode, Engine, OobMode
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.language.tensor_view import Indirect

_Mode = TypeVar("_Mode", DgeMode, OobMode)
# Rows of a transpose go in blocks of 16, and an index has as many partitions at least.
_BLOCK = 16
_LARGEST = 128


def mode_of(emit: Emit, modes: type[_Mode], given: Any, name: str) -> _Mode:
    """A member of an enumeration; kernels also pass its number."""
    if isinstance(given, modes):
        return given
    for mode in modes:
        if type(given) is int and given == mode.value:
            return mode
    names = ", ".join(mode.name for mode in modes)
    return emit.illegal(f"{name}={given} must be one of {names}")


def check_issuer(emit: Emit, mode: DgeMode, engine: Any, priority: Any) -> None:
    """hwdge exists from trn2 on, and takes an engine; priorities from trn3 on."""
    emit.require(mode is not DgeMode.hwdge or emit.generation > 2, "hwdge needs trn2 or newer")
    issuers = (Engine.unknown, Engine.sync, Engine.scalar) if mode is DgeMode.hwdge else (None,)
    if engine is not None and engine is not Engine.unknown and engine not in issuers:
        emit.illegal(f"engine={engine}: hwdge alone takes an engine, sync or scalar")
    if priority is not None:
        emit.require(emit.generation > 3, "priority needs trn3")
        if priority not in (0, 1, 2, 3):
            emit.illegal(f"priority={priority} must be from 0 to 3, 0 the highest")


def check_descriptors(emit: Emit, mode: DgeMode, **operands: NkiTensor) -> None:
    """Descriptors that lie in HBM before the run know no address that values decide; hardware DGE
    knows one address, not a list of rows.
    """
    for name, tensor in operands.items():
        indirect = tensor.indirection
        if indirect is None:
            continue
        if mode is DgeMode.none:
            emit.illegal(
                f"{name} has an address that values decide, which dge_mode.none does not take; "
                "leave dge_mode out, or use swdge"
            )
        if mode is DgeMode.hwdge and indirect.is_vector:
            emit.illegal(
                f"{name} has a vector_offset, which hwdge does not take; leave dge_mode out, or "
                "use swdge"
            )


def check_hwdge_transpose(emit: Emit, src: NkiTensor, mode: DgeMode) -> None:
    """A direct transpose by hardware DGE has limits of its own."""
    # The description names unknown and hwdge, the parameter none as well; public kernels pass it.
    emit.require(mode is not DgeMode.swdge, "a direct transpose takes hwdge, none or unknown")
    if mode is not DgeMode.hwdge:
        return
    rows = src.shape[0]
    fits = (
        rows == 16
        if src.ndim == 2
        else (rows in (1, 2, 4, 8, 16) and rows * src.shape[-2] % 16 == 0)
    )
    if not fits:
        emit.illegal(f"hwdge does not transpose {src.shape}: see the limits of src.shape[0]")
    if src.shape[-1] > 128:
        emit.illegal(f"hwdge transposes rows of up to 128, not {src.shape[-1]}")
    if src.dtype.itemsize != 2:
        emit.illegal(f"hwdge transposes 2-byte types, not {src.dtype}")
    if rows != _BLOCK or src.shape[-1] != _LARGEST:
        emit.finding(
            DISPUTED_LEGALITY,
            f"hwdge transposes src {src.shape} by SDK/nki/api/nki/isa/__init__.py (dma_transpose); "
            "by SDK/nki/deep-dives/nki-dge.rst it takes 16 rows, and a multiple of 128 in the last "
            "dimension; src of 16 rows and 128 columns is right by both",
        )


def check_transpose_destination(emit: Emit, dst: NkiTensor) -> None:
    """The sources disagree on a transpose to HBM."""
    if not dst.is_on_chip:
        emit.finding(
            DISPUTED_LEGALITY,
            "dst is in HBM; it must be in SBUF by SDK/nki/api/nki/isa/__init__.py (dma_transpose), "
            "and is in HBM in SDK/nki/migration/index.rst; a tile in SBUF and a nisa.dma_copy "
            "are right by both",
        )


def check_indirect_transpose(emit: Emit, src: NkiTensor, mode: DgeMode) -> None:
    """Limits of a transpose of rows that an index names, which software DGE does."""
    if not (src.ndim < 4 or 1 in src.shape[1:3]):
        emit.illegal(f"src is {src.shape}; an indirect transpose needs dimension 1 or 2 of size 1")
    if src.dtype.itemsize != 2:
        emit.illegal(f"an indirect transpose takes 2-byte types, not {src.dtype}")
    if src.shape[-1] > _LARGEST:
        emit.illegal(
            f"src is {src.shape}; an indirect transpose takes up to {_LARGEST} elements in the "
            "last dimension: transpose parts of it"
        )
    if src.shape[0] % _BLOCK:
        emit.illegal(
            f"src has {src.shape[0]} rows; an indirect transpose takes a multiple of {_BLOCK}: "
            "gather more rows than are needed"
        )
    emit.require(
        mode in (DgeMode.unknown, DgeMode.swdge), "an indirect transpose takes swdge alone"
    )


def transpose_index(emit: Emit, src: NkiTensor, indirect: Indirect) -> NkiTensor:
    """The index of an indirect transpose, which counts down its columns."""
    index = indirect.index
    if not isinstance(index, NkiTensor) or index.size < src.shape[0]:
        emit.illegal(f"src has {src.shape[0]} rows; the index must have as many elements")
    if index.dtype != "uint32":
        emit.illegal(f"the index of src is {index.dtype}, not uint32; convert it with tensor_copy")
    if index.ndim != 2:
        emit.illegal(f"the index of src has {index.ndim} dimensions, not 2")
    partitions, columns = index.shape
    if partitions % _BLOCK or not _BLOCK <= partitions <= _LARGEST:
        emit.illegal(
            f"the index of src has {partitions} partitions; there must be {_BLOCK} to {_LARGEST}, "
            f"a multiple of {_BLOCK}"
        )
    if columns > 1 and partitions != _LARGEST:
        emit.illegal(
            f"the index of src is {index.shape}; one of several columns has {_LARGEST} partitions"
        )
    return index


def check_read_modify_write(emit: Emit, dst: NkiTensor, srcs: Sequence[NkiTensor]) -> None:
    """An indirect `dma_compute` adds to what `dst` has: one source is dst itself. A scatter adds
    data in SBUF to rows in HBM, a gather rows in HBM to data in SBUF.
    """
    if len(srcs) != 2:
        emit.illegal(f"an indirect dma_compute takes 2 sources, not {len(srcs)}")
    others = [src for src in srcs if not _is_same_place(src, dst)]
    if len(others) > 1:
        emit.illegal(
            "an indirect dma_compute adds to its destination: one source must be dst itself, with "
            "the same access pattern and index (SDK/nki/api/nki/isa/__init__.py, dma_compute)"
        )
    in_sbuf = dst if dst.indirection is None else (others or srcs)[0]
    if in_sbuf.is_on_chip and in_sbuf.indirection is None:
        return
    emit.illegal(
        "an indirect dma_compute adds data in SBUF to rows in HBM, or rows in HBM to a tile in "
        "SBUF (SDK/nki/api/nki/isa/__init__.py, dma_compute)"
    )


def _is_same_place(src: NkiTensor, dst: NkiTensor) -> bool:
    """True where both views walk the same elements, by the same index."""
    if not src.same_elements(dst):
        return False
    mine, its = src.indirection, dst.indirection
    if mine is None or its is None:
        return mine is its
    if (mine.scale, mine.dim, mine.is_vector) != (its.scale, its.dim, its.is_vector):
        return False
    if isinstance(mine.index, NkiTensor) and isinstance(its.index, NkiTensor):
        return mine.index.same_elements(its.index)
    return mine.index is its.index
