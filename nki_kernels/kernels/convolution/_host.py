"""What `convolution` matches, takes and costs; its reference."""

from __future__ import annotations

import math

import torch

from trnx.nki_kernels.activations import ACTIVATIONS
from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels.convolution._depthwise_plan import depthwise_bytes, is_depthwise
from trnx.nki_kernels.kernels.convolution._geometry import plan_bytes
from trnx.nki_kernels.kernels.convolution._windows import Problem, Window, output_size, trivial
from trnx.nki_kernels.spec import Bindings, Cost
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten

# The kernel's arguments that are bindings, in its order.
NAMES = (
    "x", "weight", "bias", "residual", "norm_weight", "norm_bias", "mean", "variance", "eps",
    "activation", "transposed", "groups",
)  # fmt: skip
_VECTORS = ("bias", "norm_weight", "norm_bias", "mean", "variance")
# The share of a partition of SBUF that a plan may fill: loads of the next block overlap.
_SHARE = 0.7
# Output channels that rows are, at most, and bytes of a row, at least, as its descriptor takes the
# time of some.
_MOST_APART, _LEAST_ROW = 128, 128


def windows_of(b: Bindings) -> list[Window]:
    """One window for each dimension of the kernel."""
    dims = b.x.ndim - 2
    windows = []
    for i in range(dims):
        stride, padding, dilation = (
            given[i if len(given) > 1 else 0] for given in (b.stride, b.padding, b.dilation)
        )
        size, kernel = b.x.shape[2 + i], b.weight.shape[2 + i]
        window = Window(size, 0, kernel, stride, padding, dilation, b.transposed)
        more = b.output_padding[i if len(b.output_padding) > 1 else 0]
        windows.append(window._replace(out=output_size(window, more)))
    return windows


def out_channels(b: Bindings) -> int:
    """Channels of the result."""
    return int(b.weight.shape[1] * b.groups if b.transposed else b.weight.shape[0])


def result_shape(b: Bindings) -> tuple[int, ...]:
    """Of the convolution."""
    return (b.x.shape[0], out_channels(b), *(window.out for window in windows_of(b)))


def rows_apart(b: Bindings) -> int:
    """Rows of the result that each row of x makes by itself, as a transposed convolution does whose
    kernel is its stride; 1 where they had better not be output channels: where there are many of
    those, or where rows are short, as each is a transfer's run of its own.
    """
    if not b.transposed or b.x.ndim != 4 or b.groups > 1:
        return 1
    rows, columns = windows_of(b)
    is_apart = rows.kernel == rows.stride and rows.out == rows.size * rows.stride
    is_few = out_channels(b) * rows.stride <= _MOST_APART
    is_long = columns.out * b.x.dtype.itemsize >= _LEAST_ROW
    return rows.stride if is_apart and rows.padding == 0 and is_few and is_long else 1


def problem_of(b: Bindings) -> Problem:
    """The convolution of one group along its three axes."""
    windows = windows_of(b)
    apart = rows_apart(b)
    if apart > 1:
        windows[0] = Window(b.x.shape[2], b.x.shape[2], 1, 1, 0, 1, True)
    if len(windows) == 3:
        axes = windows
    elif len(windows) == 2:
        axes = [trivial(b.x.shape[0]), *windows]
    else:
        axes = [trivial(b.x.shape[0]), windows[0], trivial(1)]
    channels = b.x.shape[1] // b.groups
    outs = out_channels(b) * apart // b.groups
    size, has_residual = b.x.dtype.itemsize, b.residual is not None
    return Problem(channels, outs, size, axes[0], axes[1], axes[2], has_residual)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """One dtype, one to three dimensions, blocks that fit SBUF."""
    if reject := reject_dtypes(b, "x"):
        return reject
    if b.x.ndim not in (3, 4, 5) or b.weight.ndim != b.x.ndim:
        return Reject(f"x{b.x.shape} and weight{b.weight.shape}: 1 to 3 dimensions are possible")
    for name in ("weight", "residual", "bias"):
        if b[name] is not None and b[name].dtype != b.x.dtype:
            return Reject(f"{name} is {b[name].dtype} but x is {b.x.dtype}; one dtype is needed")
    if reject := reject_dtypes(b, *_VECTORS):
        return reject
    return _reject_sizes(b, hw)


def _reject_sizes(b: Bindings, hw: Hardware) -> Reject | None:
    if b.x.numel == 0 or b.weight.numel == 0 or min(result_shape(b)) < 1:
        return Reject(f"an empty convolution: x{b.x.shape}, weight{b.weight.shape}")
    if b.residual is not None and b.residual.shape != result_shape(b):
        return Reject(f"the added tensor has shape {b.residual.shape}, not {result_shape(b)}")
    if is_depthwise(b):
        needed = depthwise_bytes(b, windows_of(b), hw)
    else:
        needed = plan_bytes(problem_of(b), hw)
    if needed > _SHARE * hw.sbuf_partition_bytes:
        return Reject(
            f"x{b.x.shape} and weight{b.weight.shape}: the smallest block takes {needed} bytes of "
            f"a partition of SBUF, more than {_SHARE:.0%} of {hw.sbuf_partition_bytes}"
        )
    return None


def cost(b: Bindings) -> Cost:
    """Two FLOPs per multiply-add; every operand crosses HBM once."""
    result = math.prod(result_shape(b))
    # Each element of x (of the result, unless transposed) takes part in so many products.
    each = b.weight.numel // b.weight.shape[0]
    tensors = [b[name] for name in ("x", "weight", "residual", *_VECTORS) if b[name] is not None]
    steps = len(tensors) - 2 + (b.activation != "none") + 1
    return Cost(
        matmul_flops=2 * each * (b.x.numel if b.transposed else result),
        vector_flops=result * steps,
        hbm_bytes=sum(t.nbytes for t in tensors) + result * b.x.dtype.itemsize,
    )


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    norm_bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    eps: float,
    sizes: list[int] | None,
    activation: str,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> torch.Tensor:
    """The same in float32, rounded once; `sizes` is what the vectors are viewed as."""
    del sizes
    vector = None if bias is None else bias.float()
    how = (stride, padding, dilation, transposed, output_padding, groups)
    result = aten.convolution.default(x.float(), weight.float(), vector, *how)
    if mean is not None and variance is not None:
        given = [None if t is None else t.float() for t in (norm_weight, norm_bias, mean, variance)]
        result = torch.nn.functional.batch_norm(
            result, given[2], given[3], given[0], given[1], False, 0.0, eps
        )
    if residual is not None:
        result = result + residual.float()
    return ACTIVATIONS[activation](result).to(x.dtype)
