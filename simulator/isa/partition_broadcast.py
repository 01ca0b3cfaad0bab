"""`partition_broadcast`: one partition into many; what `nl.broadcast_to` makes of a row.

Not an instruction of the chip. NKI runs a product of ones with the row on TensorE for it
(trainium_inferentia2_arch.rst, "Partition Broadcast"); where its result is kept on the way to SBUF
is not published. Kernels of Jerry2423/kda-for-trainium that do so (mamba_v2) keep TensorE busy for
such products, VectorE and ScalarE for no copy of their results. Values are those of the row, in any
dtype.
"""

from __future__ import annotations

from trnx.simulator.costs.tensor import on_tensor_broadcast
from trnx.simulator.isa.copy import append_copy
from trnx.simulator.isa.instruction import Emit, recorded
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor


@recorded(engines=(Engine.tensor,), cost=(on_tensor_broadcast,))
def partition_broadcast(emit: Emit, dst: NkiTensor, src: NkiTensor) -> None:
    """dst[p, ...] = src[0, ...] for every partition p, rounded once to the dtype of `dst`."""
    emit.name = "nl.broadcast_to"
    source = emit.read(src, "operand", shape=(1, *dst.shape[1:]))
    target = emit.write(dst, "dst")
    append_copy(emit, source.expand(dst.shape), src.dtype, target, dst.dtype)
