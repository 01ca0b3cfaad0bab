"""`tile_map`: one function of whole tiles in float32; what nki.language's tile maths is made of.

Not an instruction of the chip and not visible in `nki.isa`'s documentation: the compiler lowers
these functions as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trnx.simulator.isa.instruction import Emit, recorded
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.propagation import by_partition

_OF_ROWS = by_partition()


@recorded(engines=(Engine.vector,), undefined=by_partition("operand"))
def tile_map(
    emit: Emit,
    dst: NkiTensor,
    sources: Sequence[NkiTensor],
    function: Callable[..., Any],
    label: str,
    is_of_rows: bool = False,
) -> None:
    """dst = function(*sources, out=...), recorded under the name nl.`label`. Element by element, or
    from all elements of a partition, as reductions are.
    """
    emit.name = f"nl.{label}"
    if is_of_rows:
        emit.propagation = _OF_ROWS
    values = [emit.read_f32(source, "operand") for source in sources]
    out = emit.write_f32(dst, "dst", elementwise=False)
    emit.step(function, *values, out=out)
