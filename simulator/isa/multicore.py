"""Two NeuronCores of one logical core: `core_barrier`, `sendrecv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnx.simulator.costs.attributes import exchange_attributes
from trnx.simulator.costs.cost import barrier
from trnx.simulator.costs.dma import exchanging
from trnx.simulator.findings import DISPUTED_LEGALITY
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.recorder import current
from trnx.simulator.language.enums import DmaEngine, Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import ON_CHIP, SBUF, MemoryRegion
from trnx.simulator.program.propagation import Missing, by_element

# Bytes per partition that GpSimd's own DMA moves at most, by element size.
_GPSIMD_DMA_LIMIT = {4: 1024, 2: 512, 1: 256}


def _check_programs(emit: Emit) -> None:
    count = emit.programs
    if count != 2:
        emit.illegal(f"it needs a launch of 2 programs (kernel[2]), not of {count}")
    emit.own_scratch()


@instruction(
    engines=(Engine.gpsimd, Engine.vector, Engine.scalar, Engine.tensor, Engine.sync),
    generation=3,
    meets=True,
    cost=(barrier,),
)
def core_barrier(
    emit: Emit,
    data: NkiTensor,
    cores: Sequence[int],
    engine: Any = Engine.gpsimd,
    name: Any = None,
) -> None:
    """Wait until both cores are here; `data` is what they share."""
    emit.on(engine)
    _check_programs(emit)
    if tuple(cores) != (0, 1):
        emit.illegal(f"cores must be (0, 1), not {tuple(cores)}")
    emit.check(data, "data", (MemoryRegion.shared_hbm, *ON_CHIP))
    is_shared = data.storage.buffer is MemoryRegion.shared_hbm
    if not is_shared:
        emit.finding(
            DISPUTED_LEGALITY,
            f"data is in {data.storage.buffer.value}; it must be in shared HBM by "
            "SDK/nki/api/nki/isa/__init__.py (core_barrier), and nki-library's "
            "bwmm_shard_on_I_mx.py passes a tile in SBUF; pass the tensor that the cores share",
        )
    key = data.storage.index if is_shared else "on chip"
    emit.meet(("core_barrier", key), None, data if is_shared else None)


@instruction(
    engines=(Engine.dma,),
    generation=3,
    undefined=by_element("src"),
    meets=True,
    cost=(exchanging,),
)
def sendrecv(
    emit: Emit,
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: Any = DmaEngine.dma,
    name: Any = None,
) -> None:
    """dst = the other core's src, as it is when both cores are here."""
    _check_programs(emit)
    peer = 1 - current("sendrecv").core.index
    if send_to_rank != peer or recv_from_rank != peer:
        emit.illegal(
            f"ranks ({send_to_rank}, {recv_from_rank}) must both be the other core, {peer}"
        )
    if src.shape != dst.shape or src.dtype != dst.dtype:
        emit.illegal(f"src {src.shape} {src.dtype} and dst {dst.shape} {dst.dtype} differ")
    if dma_engine is DmaEngine.gpsimd_dma:
        emit.attributes = exchange_attributes(uses_gpsimd=True)
        limit = _GPSIMD_DMA_LIMIT[src.dtype.itemsize]
        size = src.free_size * src.dtype.itemsize
        if size > limit:
            emit.illegal(f"gpsimd_dma moves {limit} bytes per partition, not {size}")
    for operand, tensor in (("src", src), ("dst", dst)):
        # The step that would fetch it belongs to this core, and the exchange to the last of both.
        if tensor.is_indirect():
            emit.illegal(f"{operand} cannot have a dynamic address")
    source = emit.read(src, "src", buffers=SBUF)
    target = emit.write(dst, "dst", buffers=SBUF)
    # What has no value in the source has none in the other core's destination.
    missing = emit.missing
    received: list[Missing] = []
    emit.missing = received
    for conditions, _ in emit.skipped:
        emit.steps += emit.initialised.skips.checks(conditions)
    emit.skipped = []
    arrived = emit.meet(("sendrecv", pipe_id), (source, target, missing, received))
    if arrived is None:
        return
    (source_0, target_0, missing_0, received_0) = arrived[0]
    (source_1, target_1, missing_1, received_1) = arrived[1]
    received_0 += missing_1
    received_1 += missing_0
    if source_0.shape != source_1.shape or source_0.dtype != source_1.dtype:
        emit.illegal(f"the cores exchange {tuple(source_0.shape)} and {tuple(source_1.shape)}")
    # Both sources are taken before either destination is written: they may be the same tile.
    held = emit.scratch(source_0.shape, source_0.dtype)
    emit.step(held.copy_, source_0)
    emit.step(target_0.copy_, source_1)
    emit.step(target_1.copy_, held)
