"""Loops whose trip counts only a run knows: every kind, nested, with indirect addresses inside.

Each kernel takes (x, ids, count, inner): float32 [8, 8], int32 [8, 4] of row numbers of x, and two
int32 [1]. Each adds up rows in SBUF and stores the sum, so every turn leaves a mark.
"""

# ruff: noqa: ARG001 (all kernels have the same parameters)

import nki
import nki.isa as nisa
import nki.language as nl
from kernel_parts import register_of, stored


def _zeros(rows, columns):
    total = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    return total


def _add_row(total, x, i):
    """total += x[i], with i a register."""
    row = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=x.select(0, i).reshape((1, x.shape[1])))
    nisa.tensor_tensor(dst=total, data1=total, data2=row, op=nl.add)


def _add_gathered(total, x, ids, i):
    """total[p] += x[ids[i, p]] for the 4 indices of row i."""
    index = nl.ndarray((4, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=ids.select(0, i).reshape((4, 1)))
    rows = nl.ndarray((4, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=x.vector_select(0, index))
    nisa.tensor_tensor(dst=total, data1=total, data2=rows, op=nl.add)


def _decrease(register, held):
    """register -= 1, through SBUF: registers have no arithmetic of their own."""
    nisa.register_store(held, register)
    nisa.tensor_scalar(dst=held, data=held, op0=nl.subtract, operand0=1)
    nisa.register_load(register, held)


@nki.jit
def fori(x, ids, count, inner):
    total = _zeros(1, x.shape[1])
    bound = register_of(count)

    def body(i):
        _add_row(total, x, i)

    nl.fori_loop(0, bound, body)
    return stored(total)


@nki.jit
def fori_from_a_register(x, ids, count, inner):
    """From `inner` to `count` in steps of 2."""
    total = _zeros(1, x.shape[1])
    start = register_of(inner)
    bound = register_of(count)

    def body(i):
        _add_row(total, x, i)

    nl.fori_loop(start, bound, body, step=2)
    return stored(total)


@nki.jit
def dynamic(x, ids, count, inner):
    total = _zeros(1, x.shape[1])
    for i in nl.dynamic_range(register_of(count)):
        _add_row(total, x, i)
    return stored(total)


@nki.jit
def while_register(x, ids, count, inner):
    """Rows count, count - 1, ..., 1."""
    total = _zeros(1, x.shape[1])
    left = register_of(count)
    held = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    while left:
        _add_row(total, x, left)
        _decrease(left, held)
    return stored(total)


@nki.jit
def while_body(x, ids, count, inner):
    """The same by nl.while_loop, which goes on with the register that the body returns."""
    total = _zeros(1, x.shape[1])
    held = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)

    def body(left):
        _add_row(total, x, left)
        following = nisa.register_alloc()
        nisa.register_move(following, left)
        _decrease(following, held)
        return following

    nl.while_loop(register_of(count), body)
    return stored(total)


@nki.jit
def gathers(x, ids, count, inner):
    total = _zeros(4, x.shape[1])

    def body(i):
        _add_gathered(total, x, ids, i)

    nl.fori_loop(0, register_of(count), body)
    return stored(total)


@nki.jit
def nested_fori(x, ids, count, inner):
    """Row j once for every pair i < count, j < inner."""
    total = _zeros(1, x.shape[1])
    bound = register_of(inner)

    def outer(i):
        def body(j):
            _add_row(total, x, j)

        nl.fori_loop(0, bound, body)

    nl.fori_loop(0, register_of(count), outer)
    return stored(total)


@nki.jit
def nested_triangle(x, ids, count, inner):
    """Row j once for every pair j < i < count: the inner bound is the outer counter."""
    total = _zeros(1, x.shape[1])
    for i in nl.dynamic_range(register_of(count)):
        for j in nl.dynamic_range(i):
            _add_row(total, x, j)
    return stored(total)


@nki.jit
def fori_in_while(x, ids, count, inner):
    """For left = count, ..., 1: the gathered rows of every i < inner."""
    total = _zeros(4, x.shape[1])
    left = register_of(count)
    bound = register_of(inner)
    held = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)

    def body(i):
        _add_gathered(total, x, ids, i)

    while left:
        nl.fori_loop(0, bound, body)
        _decrease(left, held)
    return stored(total)


@nki.jit
def while_in_dynamic(x, ids, count, inner):
    """For every i < count: rows inner, ..., 1, and once row i."""
    total = _zeros(1, x.shape[1])
    held = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    for i in nl.dynamic_range(register_of(count)):
        left = register_of(inner)
        while left:
            _add_row(total, x, left)
            _decrease(left, held)
        _add_row(total, x, i)
    return stored(total)


@nki.jit
def scatters_in_a_loop(x, ids, count, inner):
    """Row ids[i, 0] of a result of zeros becomes x[i], for i < count."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=_zeros(x.shape[0], x.shape[1]))
    for i in nl.dynamic_range(register_of(count)):
        at = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=at, src=ids.select(0, i)[0:1].reshape((1, 1)))
        row = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=row, src=x.select(0, i).reshape((1, x.shape[1])))
        nisa.dma_copy(dst=out.select(0, at).reshape((1, x.shape[1])), src=row)
    return out


@nki.jit
def two_loops(x, ids, count, inner):
    """A loop after a loop, on the same tiles."""
    total = _zeros(1, x.shape[1])
    for i in nl.dynamic_range(register_of(count)):
        _add_row(total, x, i)
    nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=2.0)
    for i in nl.dynamic_range(register_of(inner)):
        _add_row(total, x, i)
    return stored(total)


@nki.jit
def writes_its_counter(x, ids, count, inner):
    """Writing the counter changes what the rest of the turn sees, not the loop."""
    total = _zeros(1, x.shape[1])
    for i in nl.dynamic_range(register_of(count)):
        nisa.register_move(i, 2)
        _add_row(total, x, i)
    return stored(total)


@nki.jit
def loops_by(x, kind, value):
    """A loop whose bound or condition is `value`: None stands for a tile."""
    total = _zeros(1, x.shape[1])
    bound = total if value is None else value

    def body(register):
        nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=1.0)
        return register

    if kind == "while":
        nl.while_loop(bound, body)
    else:
        for _ in nl.dynamic_range(0, bound):
            body(None)
    return stored(total)


@nki.jit
def asks_for_axis(x, function, axis):
    """Asks the launch grid for an axis."""
    total = _zeros(1, x.shape[1])
    nisa.memset(total, value=float((nl.program_id if function == "id" else nl.num_programs)(axis)))
    return stored(total)


@nki.jit
def endless_statement(x, ids, count, inner):
    total = _zeros(1, x.shape[1])
    left = register_of(count)
    while left:
        _add_row(total, x, 0)
    return stored(total)


@nki.jit
def endless_body(x, ids, count, inner):
    total = _zeros(1, x.shape[1])

    def body(left):
        _add_row(total, x, 0)
        return left

    nl.while_loop(register_of(count), body)
    return stored(total)
