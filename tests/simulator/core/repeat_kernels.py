"""Kernels whose instructions repeat at one line, and differ there from turn to turn."""

from __future__ import annotations

from random import Random

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def mixed(x: nl.NkiTensor, turns: int) -> nl.NkiTensor:
    """x `[turns * 128, 16]` float32 -> the same shape, by instructions of many families."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    kept = nl.ndarray((128, 16 * turns), dtype=nl.bfloat16, buffer=nl.sbuf)
    sums = nl.ndarray((128, turns), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((16, 16), dtype=nl.float32, buffer=nl.psum)
    for turn in range(turns):
        rows = nl.ds(turn * 128, 128)
        tile = nl.ndarray([128, 16], dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[rows, :])
        half = kept[:, turn * 16 : turn * 16 + 16]
        nisa.tensor_copy(dst=half, src=tile)
        nisa.tensor_tensor(dst=half, data1=half, data2=half, op=nl.add)
        # In the first turn both operands are the destination.
        nisa.tensor_tensor(dst=half, data1=half, data2=kept[:, 0:16], op=nl.maximum)
        nisa.tensor_tensor(dst=tile, data1=half, data2=kept[:, 0:16], op=nl.greater)
        column = sums[:, turn : turn + 1]
        nisa.activation(
            dst=tile,
            op=nl.tanh,
            data=tile,
            scale=0.5,
            reduce_op=nl.add,
            reduce_res=column,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=column)
        nisa.nc_matmul(dst=total, stationary=half, moving=kept[:, 0:16])
        turned = nl.ndarray((16, 128), dtype=nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=half, engine=nisa.engine.tensor)
        again = nl.ndarray((16, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=again, src=turned)
        back = nl.ndarray((128, 16), dtype=nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(dst=back, data=again, engine=nisa.engine.tensor)
        nisa.tensor_tensor(dst=tile, data1=tile, data2=back, op=nl.add)
        zero = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(zero, -0.0 if turn % 3 == 2 else 0.0)
        nisa.tensor_copy(dst=tile[:, 0:4], src=zero)
        # They overlap in some turns.
        first = turn % 5 + 4
        nisa.tensor_copy(dst=tile[:, first : first + 4], src=tile[:, 6:10])
        start = 32 * (turn % 3)
        nisa.tensor_copy(dst=tile[start : start + 32, 12:16], src=tile[0:32, 8:12])
        nisa.dma_copy(dst=out[rows, :], src=tile)
        nisa.dma_copy(dst=out[rows, 8:16], src=out[rows, 0:8])
    last = nl.ndarray((16, 16), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=last, src=total)
    nisa.dma_copy(dst=out[0:16, :], src=last)
    return out


@nki.jit
def reshaped(x: nl.NkiTensor, turns: int) -> nl.NkiTensor:
    """x `[128, 32]` float32 -> the same shape. The operands are the same bytes in the first turns,
    and overlap in later ones.
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    target = tile[:, 0:8].reshape((128, 4, 2))
    for turn in range(turns):
        first = 0 if turn < 3 else 2 * (turn % 3)
        nisa.tensor_copy(dst=target, src=tile[:, first : first + 8])
        nisa.tensor_scalar(dst=target, data=tile[:, first : first + 8], op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def shares_bytes(x: nl.NkiTensor, turns: int) -> nl.NkiTensor:
    """x `[128, 32]` float32 -> the same shape. Two tensors have one address: what one holds goes
    to the other, first to the same bytes and then to others.
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for turn in range(turns):
        first = 0 if turn < 3 else 8 * (turn % 3)
        here = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))
        nisa.dma_copy(dst=here, src=x)
        there = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))
        nisa.tensor_scalar(
            dst=there[:, 0:8], data=here[:, first : first + 8], op0=nl.add, operand0=1.0
        )
        nisa.dma_copy(dst=out[:, 0:8], src=there[:, 0:8])
    nisa.dma_copy(dst=out[:, 8:32], src=x[:, 8:32])
    return out


@nki.jit
def placed(x: nl.NkiTensor, turns: int) -> nl.NkiTensor:
    """x `[128, 8]` float32 -> x + turns, in tensors that share two addresses."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))
    nisa.dma_copy(dst=tile, src=x)
    for turn in range(turns):
        other = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf, address=(0, 32 * (turn % 2)))
        # Two tensors of one address in every other turn.
        nisa.tensor_scalar(dst=other, data=tile, op0=nl.add, operand0=1.0)
        tile = other
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def goes_wrong(x: nl.NkiTensor, turns: int, fault: str) -> nl.NkiTensor:
    """x `[128, 16]` float32 -> the same; the last turn has a fault."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)
    identity = nl.shared_identity_matrix(16, dtype=nl.float32)
    nisa.dma_copy(dst=tile, src=x)
    for turn in range(turns):
        is_last = turn == turns - 1
        wide = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)
        square = nl.ndarray((16, 16), dtype=nl.float32, buffer=nl.sbuf)
        bank = nl.ndarray((16, 1024), dtype=nl.float32, buffer=nl.psum)
        if not (is_last and fault == "unwritten"):
            nisa.memset(wide, 1.0)
        nisa.tensor_tensor(dst=wide, data1=wide, data2=tile, op=nl.add)
        if is_last and fault == "constant":
            square = identity
        nisa.memset(square, 2.0)
        if is_last and fault == "partition":
            nisa.memset(wide[0:32], 0.0)
        start = 16 if is_last and fault == "partition" else 32
        nisa.tensor_copy(dst=wide[start : start + 32], src=tile[0:32])
        column = 504 if is_last and fault == "bank" else 16 * turn
        nisa.nc_matmul(dst=bank[:, column : column + 16], stationary=tile, moving=wide)
        if is_last and fault == "modified":
            nisa.memset(bank[:, column : column + 16], 0.0)
        nisa.nc_matmul(dst=bank[:, column : column + 16], stationary=tile, moving=wide)
        value = "one" if is_last and fault == "value" else 1.0
        nisa.tensor_scalar(dst=wide, data=wide, op0=nl.add, operand0=value)
        rows = 127 if is_last and fault == "shape" else 128
        nisa.tensor_copy(dst=wide, src=tile[0:rows])
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def starts_wrong(x: nl.NkiTensor, turns: int) -> nl.NkiTensor:
    """x `[128, 16]` float32 -> the same; every turn has the same fault at one line."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for _ in range(turns):
        nisa.tensor_copy(dst=tile[16:48], src=tile[0:32])
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def overlapping_stores(x: nl.NkiTensor, turns: int) -> nl.NkiTensor:
    """x `[turns * 32, 8]` float32; in the last turn two programs store to the same rows."""
    out = nl.ndarray((turns * 64 - 32, 8), dtype=x.dtype, buffer=nl.shared_hbm)
    program = nl.program_id(0)
    for turn in range(turns):
        tile = nl.ndarray((32, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[turn * 32 : turn * 32 + 32])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=float(program))
        mine = 0 if turn == turns - 1 else program
        first = (2 * turn + mine) * 32
        nisa.dma_copy(dst=out[first : first + 32], src=tile)
    return out


def random_instructions(x: nl.NkiTensor, seed: int) -> nl.NkiTensor:
    """Instructions of few forms at few lines, on random parts of few tiles.

    x `[128, 16]` float32 -> `[128, 32]`: of each tile 8 columns.
    """
    choose = Random(seed)
    out = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    tiles = [
        nl.ndarray((128, 24), dtype=nl.float32, buffer=nl.psum),
        nl.ndarray((128, 24), dtype=nl.float32, buffer=nl.sbuf),
        nl.ndarray((128, 24), dtype=nl.bfloat16, buffer=nl.sbuf),
        nl.ndarray((128, 24), dtype=nl.float32, buffer=nl.sbuf, address=(0, 4096)),
    ]

    def part(form: tuple[int, int, bool]) -> nl.NkiTensor:
        """Eight columns of a tile, wherever they begin."""
        number, start, is_deep = form
        first = choose.choice((0, 2, 4, 8))
        view = tiles[number][start : start + 32, first : first + 8]
        return view.reshape((32, 4, 2)) if is_deep else view

    def form_of(*numbers: int) -> tuple[int, int, bool]:
        return choose.choice(numbers), choose.choice((0, 0, 32)), choose.random() < 0.3

    forms = [(form_of(0, 1, 1, 3), form_of(1, 1, 2, 3), form_of(1, 1, 2)) for _ in range(4)]
    for tile in tiles:
        nisa.memset(dst=tile, value=1.0)
    for _ in range(500):
        dst, a, b = map(part, choose.choice(forms))
        rows, column = choose.choice((0, 32, 64)), choose.choice((0, 8))
        match choose.randrange(7):
            case 0:
                source = x[rows : rows + 32, column : column + 8]
                nisa.dma_copy(dst=b, src=source.reshape(b.shape))
            case 1:
                op = choose.choice((nl.add, nl.maximum, nl.subtract))
                nisa.tensor_tensor(dst=dst, data1=a, data2=b, op=op)
            case 2:
                value = choose.choice((0.0, -0.0, 1.0, 1))
                op = choose.choice((nl.multiply, nl.add))
                nisa.tensor_scalar(dst=dst, data=a, op0=op, operand0=value)
            case 3:
                op = choose.choice((nl.copy, nl.tanh, nl.gelu))
                nisa.activation(dst=dst, op=op, data=a)
            case 4:
                into = tiles[0][0:8, column : column + 8]
                half = part((2, 0, False))
                for is_sum in (False, True, choose.choice((None, True))):
                    nisa.nc_matmul(
                        dst=into, stationary=half, moving=part((2, 0, False)), accumulate=is_sum
                    )
            case 5:
                nisa.tensor_copy(dst=dst, src=a)
            case 6:
                number = choose.randrange(3)
                old = tiles[number]
                tiles[number] = nl.ndarray((128, 24), dtype=old.dtype, buffer=old.buffer)
                nisa.memset(dst=tiles[number], value=2.0)
    for number, tile in enumerate(tiles):
        last = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=last, src=tile[:, 2:10])
        nisa.dma_copy(dst=out[:, 8 * number : 8 * number + 8], src=last)
    return out
