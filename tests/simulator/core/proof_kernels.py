"""Kernels for `test_proof.py`."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def product(x: nl.NkiTensor, y: nl.NkiTensor, less: int, factor: float, op: str) -> nl.NkiTensor:
    """x.T @ y in float32, without the last `less` rows, times `factor`, or a function of it."""
    out = nl.ndarray((x.shape[1], y.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    left = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    right = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=x)
    nisa.dma_copy(dst=right, src=y)
    bank = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.psum)
    rows = x.shape[0] - less
    nisa.nc_matmul(dst=bank, stationary=left[0:rows], moving=right[0:rows])
    result = nl.ndarray(out.shape, dtype=x.dtype, buffer=nl.sbuf)
    if op == "exp":
        nisa.activation(dst=result, op=nl.exp, data=bank)
    elif op == "relu":
        nisa.activation(dst=result, op=nl.relu, data=bank)
    elif op == "sigmoid":
        nisa.activation(dst=result, op=nl.sigmoid, data=bank)
    elif op == "rsqrt":
        nisa.activation(dst=result, op=nl.rsqrt, data=bank)
    else:
        nisa.tensor_scalar(dst=result, data=bank, op0=nl.multiply, operand0=factor)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def masked(x: nl.NkiTensor, mask: nl.NkiTensor, is_constant: bool) -> nl.NkiTensor:
    """The bits of x where those of a mask are set: of the input, or of a constant."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    bits = nl.ndarray(x.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    if is_constant:
        nisa.memset(dst=bits, value=-1)
        nisa.memset(dst=bits[:, 0:1], value=0)
    else:
        wide = nl.ndarray(x.shape, dtype=mask.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=wide, src=mask)
        nisa.tensor_scalar(dst=bits, data=wide, op0=nl.greater, operand0=0.0,
                           op1=nl.multiply, operand1=-1.0)  # fmt: skip
    chosen = tile.view(nl.int32)
    nisa.tensor_tensor(dst=chosen, data1=chosen, data2=bits, op=nl.bitwise_and)
    nisa.dma_copy(dst=out, src=tile)
    return out
