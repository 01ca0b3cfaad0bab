"""An instruction that trnx does not have, declared outside of it: all that there is of it."""

from __future__ import annotations

from trnx.simulator.costs.vector import on_vector, per_element
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.propagation import by_partition


def _cube(x, *, out):  # type: ignore[no-untyped-def]
    out.copy_(x**3)


@instruction(
    engines=(Engine.vector, Engine.gpsimd),
    generation=3,
    undefined=by_partition("data"),
    indirect=("data",),
    cost=(on_vector(per_element(5)),),
)
def cube(emit: Emit, dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown) -> None:
    """dst = data ** 3."""
    emit.on(engine)
    value = emit.read_f32(data, "data", shape=dst.shape)
    emit.step(_cube, value, out=emit.write_f32(dst, "dst"))
