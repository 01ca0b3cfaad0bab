"""Gradients of weights of convolutions: inputs, results and how near these are to be."""

from __future__ import annotations

from typing import Any

import torch
from launched import launch_of, simulated

import trnx
from trnx.nki_kernels import registry

SPEC = registry.kernels()["convolution_weight_gradient"]
Values = dict[str, Any]


def given(
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    outs: int | None = None,
    stride: int = 1,
    transposed: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    padding: int | None = None,
    dilation: int = 1,
) -> Values:
    """Of `outs` channels and one group, or of a channel a group; a padding of half the kernel."""
    generator = torch.Generator().manual_seed(0)
    dims = len(kernel)
    groups = x[1] if outs is None else 1
    pads = [size // 2 if padding is None else padding for size in kernel]
    how = ([stride] * dims, pads, [dilation] * dims, transposed, [0] * dims, groups)
    values = torch.randn(x, generator=generator).to(dtype)
    channels = x[1] // groups
    rows, columns = (x[1], 1) if outs is None else (outs, channels)
    both = (columns, rows) if transposed and outs is not None else (rows, columns)
    weight = torch.randn((*both, *kernel), generator=generator).to(dtype)
    out = torch.ops.aten.convolution(values.float(), weight.float(), None, *how)
    grad = torch.randn(out.shape, generator=generator).to(dtype)
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    tensors = {"grad": grad, "x": values, "weight": weight, "bias_sizes": None}
    return tensors | dict(zip(names, how, strict=True))


def run(values: Values, target: str) -> torch.Tensor:
    """The simulated result."""
    (result,) = simulated(SPEC, values, target)
    return result


def kernel_of(values: Values, target: str) -> str:
    """The name of the kernel that is launched."""
    name: str = launch_of(SPEC, values, target).kernel.__name__
    return name


def assert_equal(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Sums of float32, in another order, and one rounding."""
    scale = float(expected.float().nan_to_num(0, 0, 0).abs().max())
    step = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(got, expected, rtol=step, atol=1e-5 * scale, equal_nan=True)


def assert_result(values: Values, target: str) -> None:
    """The simulated result is the reference's."""
    assert_equal(run(values, target), SPEC.reference(**values))


def assert_spoils_its_channel(values: Values, dense: torch.Tensor, value: float) -> None:
    """A value of `dense`, an input, that is not finite leaves other channels as they are."""
    dense[1, 3, dense.shape[2] // 2, dense.shape[3] // 2] = value
    expected = SPEC.reference(**values)
    assert expected.isfinite().flatten(1).all(1).sum() == dense.shape[1] - 1
    assert_equal(run(values, "trn2"), expected)


def on_both_cores(values: Values) -> torch.Tensor:
    """What a compiled function gives where two cores share the kernel."""
    how = [values[name] for name in ("stride", "padding", "dilation", "transposed")]
    groups = values["groups"]

    def function(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        mask = [False, True, False]
        found = torch.ops.aten.convolution_backward(g, x, w, None, *how, [0, 0], groups, mask)
        result: torch.Tensor = found[1]
        return result

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="trnx", options={"select": "legal", "lnc": 2})
    with trnx.collect_reports() as reports:
        got: torch.Tensor = compiled(values["grad"], values["x"], values["weight"])
    regions = [r for report in reports for r in report.regions]
    assert [r.kernel for r in regions] == ["convolution_weight_gradient"]
    return got
