"""Every op of the generator's table against eager: special values, dtypes, refusals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trnx.nki_kernels.errors import GeneratorError
from trnx.nki_kernels.generator import fused_kernel, supports_node, targets
from trnx.nki_kernels.generator.table import lowers
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware

aten = torch.ops.aten
Build = Callable[..., Any]
Function = Callable[..., Any]
TRN2 = hardware("trn2")

NAN, INF = math.nan, math.inf
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1e-30, -1e-6, 0.1, -0.4, 0.5, -1.0, 1.5, -2.5, 3.0, 6.5, -7.0]
LARGE = [*SPECIAL, 25.0, -90.0, 501.0, -1001.2, 13437.7, 4988429.2, -1e20]


def column(values: list[float] = LARGE) -> torch.Tensor:
    return torch.tensor(values)


def pair(values: list[float] = LARGE) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.meshgrid(torch.tensor(values), torch.tensor(values), indexing="ij")
    return x.contiguous(), y.contiguous()


def finite(count: int = 40, low: float = -6.0, high: float = 6.0) -> torch.Tensor:
    return torch.linspace(low, high, count)


UNARY = [
    aten.abs, aten.neg, aten.exp, aten.exp2, aten.expm1, aten.log, aten.log2, aten.log10,
    aten.log1p, aten.sqrt, aten.rsqrt, aten.reciprocal, aten.square, aten.tanh, aten.sigmoid,
    aten.silu, aten.relu, aten.erf, aten.mish, aten.gelu, aten.hardswish, aten.hardsigmoid,
    aten.hardtanh, aten.relu6, aten.softplus, aten.log_sigmoid, aten.elu, aten.celu, aten.selu,
    aten.leaky_relu, aten.softshrink, aten.hardshrink, aten.sign, aten.sgn, aten.round,
    aten.floor, aten.ceil, aten.trunc, aten.frac, aten.isnan, aten.isinf, aten.isfinite,
    aten.logical_not, aten.nan_to_num, aten.logit, aten.zeros_like, aten.ones_like, aten.clone,
    aten.sin, aten.cos, aten.asin, aten.acos, aten.atan, aten.sinh, aten.cosh, aten.asinh,
    aten.acosh, aten.atanh,
]  # fmt: skip
BINARY = [
    aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor, aten.mul.Tensor, aten.div.Tensor,
    aten.maximum.default, aten.minimum.default, aten.fmax.default, aten.fmin.default,
    aten.pow.Tensor_Tensor, aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor,
    aten.gt.Tensor, aten.ge.Tensor, aten.logical_and.default, aten.logical_or.default,
    aten.logical_xor.default, aten.heaviside.default, aten.xlogy.Tensor, aten.clamp_min.Tensor,
    aten.clamp_max.Tensor, aten.logaddexp.default,
]  # fmt: skip
BACKWARD = [
    aten.tanh_backward.default, aten.sigmoid_backward.default, aten.gelu_backward.default,
    aten.silu_backward.default, aten.hardsigmoid_backward.default, aten.hardswish_backward.default,
]  # fmt: skip


def applied(op: Any, number: float) -> Function:
    return lambda x: op(x, number)


def with_scalars() -> Iterator[tuple[str, Function]]:
    """Ops with numbers as arguments."""
    for op in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.lt.Scalar):
        for number in (0.0, -2.5, 3, 1e-39, INF):
            yield f"{op} {number}", applied(op, number)
    for exponent in (0.0, 0.5, 1, 2, 3, -1, -2, -0.5, 2.5):
        yield f"pow {exponent}", applied(aten.pow.Tensor_Scalar, exponent)
    yield "pow scalar", lambda x: aten.pow.Scalar(1.5, x)
    yield "rsub", lambda x: aten.rsub.Scalar(x, 1.0, 2.0)
    yield "alpha", lambda x: aten.add.Tensor(x, x, alpha=-3)
    yield "clamp", lambda x: aten.clamp.default(x, -1.0, 2.0)
    yield "clamp low", lambda x: aten.clamp.default(x, -1.0)
    yield "clamp high", lambda x: aten.clamp.default(x, None, 2.0)
    yield "clamp_min", lambda x: aten.clamp_min.default(x, 0.5)
    yield "clamp_max", lambda x: aten.clamp_max.default(x, 0.5)
    yield "threshold", lambda x: aten.threshold.default(x, 0.5, 7.0)
    yield "gelu tanh", lambda x: aten.gelu.default(x, approximate="tanh")
    yield "quick gelu", lambda x: torch.ops.trnx.quick_gelu.default(x)
    yield "leaky_relu", lambda x: aten.leaky_relu.default(x, 2.0)
    yield "leaky_relu 0", lambda x: aten.leaky_relu.default(x, 0.0)
    yield "softplus", lambda x: aten.softplus.default(x, 2.0, 5.0)
    yield "elu", lambda x: aten.elu.default(x, 1.5, 2.0, 0.5)
    yield "logit", lambda x: aten.logit.default(x, 0.1)
    yield "fill", lambda x: aten.fill.Scalar(x, -INF)
    yield "full_like", lambda x: aten.full_like.default(x, 3)
    yield "to half", lambda x: aten._to_copy.default(x, dtype=torch.float16)
    yield "to bool", lambda x: aten._to_copy.default(x, dtype=torch.bool)
    yield "div none", lambda x: aten.div.Tensor_mode(x, 3.0, rounding_mode=None)
    yield "lerp", lambda x: aten.lerp.Scalar(x, x, 0.3)
    yield "xlogy", lambda x: aten.xlogy.Scalar_Self(2.0, x)
    yield "bool chain", lambda x: aten.bitwise_not.default(aten.gt.Scalar(x, 0.0))


def exp_of_minus(x: torch.Tensor) -> torch.Tensor:
    """exp(-|x|), the buffer that eager keeps of a log-sigmoid."""
    return aten.exp.default(aten.neg.default(aten.abs.default(x)))


def with_tensors() -> Iterator[tuple[str, Function]]:
    """Ops of several tensors, on finite values."""
    yield "addcmul", lambda x, y, z: aten.addcmul.default(x, y, z, value=0.5)
    yield "addcdiv", lambda x, y, z: aten.addcdiv.default(x, y, z, value=0.5)
    yield "lerp", lambda x, y, z: aten.lerp.Tensor(x, y, z)
    yield "prelu", lambda x, y: aten._prelu_kernel.default(x, y)
    yield "clamp", lambda x, y, z: aten.clamp.Tensor(x, y, z)
    yield "masked_fill", lambda x, y, z: aten.masked_fill.Scalar(x, aten.gt.Tensor(y, z), -INF)
    yield "masked_fill tensor", lambda x, y, z: aten.where.self(aten.gt.Tensor(y, z), x, z)
    yield "threshold_backward", lambda x, y: aten.threshold_backward.default(x, y, 0.0)
    yield "gelu_backward", lambda x, y: aten.gelu_backward.default(x, y, approximate="tanh")
    yield "leaky_relu_backward", lambda x, y: aten.leaky_relu_backward.default(x, y, 0.1, False)
    yield "hardtanh_backward", lambda x, y: aten.hardtanh_backward.default(x, y, -1.0, 1.0)
    yield "elu_backward", lambda x, y: aten.elu_backward.default(x, 1.5, 2.0, 0.5, False, y)
    yield "elu_backward result", lambda x, y: aten.elu_backward.default(x, 1, 1, 1, True, y)
    yield (
        "log_sigmoid_backward",
        lambda x, y: aten.log_sigmoid_backward.default(x, y, exp_of_minus(y)),
    )
    yield "softplus_backward", lambda x, y: aten.softplus_backward.default(x, y, 2.0, 5.0)
    yield (
        "dropout",
        lambda x, y, z: aten.native_dropout_backward.default(x, aten.gt.Tensor(y, z), 2.0),
    )
    yield "bits", lambda x, y, z: aten.bitwise_or.Tensor(aten.gt.Tensor(x, y), aten.lt.Tensor(y, z))
    yield "xor", lambda x, y, z: aten.bitwise_xor.Tensor(aten.gt.Tensor(x, y), aten.lt.Tensor(y, z))
    yield "and", lambda x, y, z: aten.bitwise_and.Tensor(aten.gt.Tensor(x, y), aten.lt.Tensor(y, z))


REDUCTIONS: list[tuple[str, Function]] = [
    ("sum", lambda x: aten.sum.dim_IntList(x, [1])),
    ("mean", lambda x: aten.mean.dim(x, [1], True)),
    ("amax", lambda x: aten.amax.default(x, [1])),
    ("amin", lambda x: aten.amin.default(x, [1], True)),
    ("max", lambda x: aten.max.default(x)),
    ("min", lambda x: aten.min.default(x)),
    ("prod", lambda x: aten.prod.dim_int(x, 1)),
    ("any", lambda x: aten.any.dim(x, 1)),
    ("all", lambda x: aten.all.dims(x, [0, 1])),
    ("var", lambda x: aten.var.correction(x, [1], correction=1, keepdim=True)),
    ("std", lambda x: aten.std.correction(x, [1], correction=0)),
    ("norm 2", lambda x: aten.linalg_vector_norm.default(x, 2, [1], True)),
    ("norm 1", lambda x: aten.linalg_vector_norm.default(x, 1, [1])),
    ("norm 0", lambda x: aten.linalg_vector_norm.default(x, 0, [1])),
    ("norm inf", lambda x: aten.linalg_vector_norm.default(x, math.inf, [1])),
    ("norm -inf", lambda x: aten.linalg_vector_norm.default(x, -math.inf, [1])),
    ("norm of all", lambda x: aten.linalg_vector_norm.default(x)),
    ("softmax", lambda x: aten._softmax.default(x, 1, False)),
    ("log_softmax", lambda x: aten._log_softmax.default(x, 0, False)),
    ("softmax_backward", lambda x: aten._softmax_backward_data.default(x, x, 1, torch.float32)),
    ("log_softmax_back", lambda x: aten._log_softmax_backward_data.default(x, x, 1, torch.float32)),
]  # fmt: skip


@pytest.mark.parametrize("op", UNARY, ids=str)
def test_unary(region: Build, op: Any) -> None:
    region(lambda x: op.default(x), column()).check()


@pytest.mark.parametrize("op", BINARY, ids=str)
def test_binary(region: Build, op: Any) -> None:
    region(lambda x, y: op(x, y), *pair()).check()


@pytest.mark.parametrize("function", [pytest.param(f, id=name) for name, f in with_scalars()])
def test_scalars(region: Build, function: Function) -> None:
    region(function, column()).check()


@pytest.mark.parametrize("op", BACKWARD, ids=str)
def test_backward(region: Build, op: Any) -> None:
    region(lambda g, x: op(g, x), *pair([-4.0, -3.0, -1.5, -0.2, 0.0, 0.3, 1.0, 3.0, 5.5])).check()


@pytest.mark.parametrize("function", [pytest.param(f, id=name) for name, f in with_tensors()])
def test_several_tensors(region: Build, function: Function) -> None:
    inputs = finite(), finite(low=-2.0, high=7.0), finite(low=0.3, high=4.0)
    region(function, *inputs).check()


@pytest.mark.parametrize(("name", "function"), [pytest.param(*c, id=c[0]) for c in REDUCTIONS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reductions(region: Build, name: str, function: Function, dtype: torch.dtype) -> None:
    if "back" in name and dtype is not torch.float32:
        pytest.skip("the reference takes one dtype")
    x = torch.randn(7, 30, generator=torch.Generator().manual_seed(1)).to(dtype)
    if name == "softmax" or name == "log_softmax":
        x[2, 5:] = -INF
    (result,) = region(function, x).run()
    # Eager rounds within these ops; the kernel rounds the float32 result once.
    expected = function(x.float())
    torch.testing.assert_close(result, expected.to(result.dtype), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", [aten.exp, aten.gelu, aten.tanh, aten.floor, aten.abs], ids=str)
def test_half_precision(region: Build, op: Any, dtype: torch.dtype) -> None:
    region(lambda x: op.default(x), column(SPECIAL[3:]).to(dtype)).check()


@pytest.mark.parametrize("number", [-1e9, 7e4, -3.4028234663852886e38, 65504.0])
def test_numbers_beyond_a_half_are_infinite(region: Build, number: float) -> None:
    mask, x = torch.tensor([True, False, True]), torch.ones(3).half()
    region(lambda m, x: aten.where.ScalarOther(m, x, number), mask, x).check()
    region(lambda m, x: aten.where.ScalarSelf(m, number, x), mask, x).check()


INTEGERS = torch.tensor([0, 1, -1, 2, 7, -100, 2**24 + 1, 2**31 - 1, -(2**31), 123456789])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: aten.add.Tensor(x, y),
        lambda x: aten.sub.Tensor(x, 5),
        lambda x, y: aten.mul.Tensor(x, y),
        lambda x: aten.neg.default(x),
        lambda x: aten.abs.default(x),
        lambda x: aten.sign.default(x),
        lambda x: aten.square.default(x),
        lambda x, y: aten.maximum.default(x, y),
        lambda x: aten.clamp.default(x, -3, 100),
        lambda x: aten.relu.default(x),
        lambda x, y: aten.eq.Tensor(x, y),
        lambda x: aten.lt.Scalar(x, 2**24),
        lambda x, y: aten.ge.Tensor(x, y),
        lambda x, y: aten.bitwise_and.Tensor(x, y),
        lambda x: aten.bitwise_or.Scalar(x, 12),
        lambda x, y: aten.bitwise_xor.Tensor(x, y),
        lambda x: aten.bitwise_not.default(x),
        lambda x, y: aten.where.self(aten.gt.Tensor(x, y), x, y),
        lambda x: aten.threshold.default(x, 3, 9),
        lambda x: aten.div.Tensor(x, 3),
        lambda x: aten.mul.Tensor(x, 0.5),
        lambda x, y: aten.logical_and.default(x, y),
        lambda x: aten._to_copy.default(x, dtype=torch.float32),
        lambda x: aten._to_copy.default(x, dtype=torch.bool),
        lambda x: aten.pow.Tensor_Scalar(x, 2),
        lambda x: aten.signbit.default(x),
        lambda x, y: aten.heaviside.default(x, y),
        lambda x: aten.isfinite.default(x),
    ],
)
def test_int32_is_exact(region: Build, function: Function) -> None:
    x, y = torch.meshgrid(INTEGERS, INTEGERS, indexing="ij")
    region(function, x.int().contiguous(), y.int().contiguous()).check()


def test_float_to_int32_truncates(region: Build) -> None:
    values = [0.0, -0.4, 0.5, 1.5, -1.5, 2.5, -2.99999, 1e6 + 0.75, -123456.5, 8388609.0, 2.0**30]
    built = region(lambda x: aten._to_copy.default(x, dtype=torch.int32), torch.tensor(values))
    built.check()


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        (lambda x: aten.tan.default(x), [finite()], "pole"),
        (lambda x: aten.polygamma.default(2, x), [finite()], "without an end"),
        (lambda x: aten.cumsum.default(x, 0), [finite()], "no rule"),
        (lambda x: aten.prod.dim_int(x, 0), [torch.arange(4)], "2\\^24"),
        (lambda x: aten.add.Tensor(x, 1), [torch.ones(4, dtype=torch.float64)], "float64"),
        (lambda x: aten.add.Tensor(x, 1), [torch.ones(0, 4)], "empty"),
        (lambda x: aten.sum.dim_IntList(x, [0]), [torch.ones(2**21, dtype=torch.int64)], "digits"),
        (lambda x: aten.pow.Tensor_Scalar(x, 5), [torch.ones(4, dtype=torch.int32)], "powers"),
        (lambda x: aten.var.correction(x, [0], correction=1), [torch.ones(1, 3)], "not finite"),
        (
            lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode="floor"),
            [finite(), finite()],
            "exact quotient",
        ),
    ],
)
def test_refusals_have_reasons(
    region: Build, function: Function, inputs: list[torch.Tensor], reason: str
) -> None:
    built = region(function, *inputs)
    (node,) = [n for n in built.gm.graph.nodes if n.op == "call_function"]
    for refusal in (
        supports_node(node, TRN2),
        fused_kernel(built.gm, TRN2),
        built.kernel.supports(built.bindings, TRN2),
    ):
        assert isinstance(refusal, Reject)
        assert re.search(reason, refusal.reason)
        assert refusal.node is node


def test_two_reductions_need_one_tile(region: Build) -> None:
    def function(x: Any) -> Any:
        return aten.sum.dim_IntList(x, [0]), aten.sum.dim_IntList(x, [1])

    refusal = fused_kernel(region(function, finite(12).reshape(3, 4)).gm, TRN2)
    assert isinstance(refusal, Reject)
    assert "different dimensions" in refusal.reason


def test_launching_a_refused_region_names_the_reason(region: Build) -> None:
    built = region(lambda x: aten.tan.default(x), finite())
    with pytest.raises(GeneratorError, match="pole"):
        built.source()


def test_an_op_has_one_lowering() -> None:
    with pytest.raises(GeneratorError, match="two lowerings"):
        lowers(aten.add.Tensor)(lambda b, x, y: b.add(x, y))


def test_every_op_is_tested() -> None:
    tested = {op.default for op in UNARY} | set(BINARY) | set(BACKWARD)
    used = {packet.overloadpacket for packet in tested}
    own = Path(__file__)
    others = ("test_across.py", "test_integer_division.py", "test_special.py")
    source = own.read_text() + "".join(own.with_name(name).read_text() for name in others)
    for target in targets():
        packet = target.overloadpacket
        name = packet.__name__
        written = re.search(rf"\b(aten|trnx)\.{name}\b", source)
        assert packet in used or written or name in REFUSED, name


REFUSED = {"prelu", "bitwise_not", "fill"}
