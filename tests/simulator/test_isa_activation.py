"""activation, activation_reduce, activate2 against float64 references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trnx.simulator.errors import FindingWarning, IllegalInstructionError

QUICK = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def _erf(x):
    return np.vectorize(math.erf)(x)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _density(x):
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _softplus(x):
    return np.logaddexp(0, x)


FUNCTIONS = {
    "copy": lambda x: x,
    "square": np.square,
    "sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "prelu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_dx": lambda x: 0.5 * (1 + _erf(x / math.sqrt(2))) + x * _density(x),
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: (
        _sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - _sigmoid(1.702 * x)))
    ),
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "tanh": np.tanh,
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "erf": _erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "exp": np.exp,
    "log": lambda x: np.log(np.abs(x)),
    "sin": np.sin,
    "arctan": np.arctan,
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "rsqrt": lambda x: 1 / np.sqrt(np.abs(x)),
    "reciprocal": lambda x: 1 / x,
    "sign": np.sign,
    "abs": np.abs,
}
POSITIVE = ("log", "sqrt", "rsqrt")
ANGLES = {"sin": math.pi, "arctan": math.pi / 2}


def some(shape, seed=0, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("layout", ["dense", "strided", "margin", "result-strided"])
def test_every_function(check_isa, nl, function, layout):
    x = some((128, 37))
    if function in POSITIVE:
        x = x.abs() + 1e-3
    if function in ANGLES:
        x = x.clamp(-ANGLES[function], ANGLES[function])
    got = check_isa(
        "activation", ins={"data": x}, outs={"dst": ((128, 37), nl.float32)}, layout=layout,
        op=getattr(nl, function),
    )  # fmt: skip
    expected = FUNCTIONS[function](x.double().numpy())
    # A few units in the last place of the function's terms, which are of order 1.
    torch.testing.assert_close(
        got["dst"].double(), torch.from_numpy(np.asarray(expected)), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    "function", ["gelu", "gelu_dx", "gelu_apprx_tanh", "silu", "silu_dx", "softplus", "mish"]
)
@pytest.mark.parametrize("layout", ["strided", "margin", "result-strided"])
def test_large_tiles_with_gaps(check_isa, nl, function, layout):
    """torch takes other code paths for large tensors, of which some ignore the strides of out."""
    x = some((128, 512))
    got = check_isa(
        "activation", ins={"data": x}, outs={"dst": ((128, 512), nl.float32)}, layout=layout,
        op=getattr(nl, function),
    )  # fmt: skip
    expected = torch.from_numpy(FUNCTIONS[function](x.double().numpy()))
    torch.testing.assert_close(got["dst"].double(), expected, rtol=1e-6, atol=1e-6)


def test_sin_continues_as_a_cubic(check_isa, nl):
    x = torch.tensor([[9.0, -9.0, 3.5, math.pi, 3.0]])
    with pytest.warns(FindingWarning, match="nl.sin reduces the range first"):
        got = check_isa(
            "activation", ins={"data": x}, outs={"dst": ((1, 5), nl.float32)}, op=nl.sin
        )
    beyond = 3.5 - math.pi
    expected = [27.653, -27.653, -beyond + beyond**3 / 6, 0.0, math.sin(3.0)]
    torch.testing.assert_close(got["dst"], torch.tensor([expected]), rtol=1e-4, atol=1e-6)


@QUICK
@given(
    bias=st.sampled_from(["none", "number", "column", "bfloat16"]),
    scale=st.sampled_from(["one", "number", "column"]),
    function=st.sampled_from(["copy", "square", "exp", "tanh"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int16]),
    result=st.sampled_from(["float32", "bfloat16"]),
    psum=st.sampled_from([(), ("data",), ("dst",)]),
    layout=st.sampled_from(["dense", "margin"]),
)
def test_scale_and_bias(check_isa, nl, bias, scale, function, dtype, result, psum, layout):
    x = (some((64, 19)) * 2).to(dtype)
    ins, constants = {"data": x}, {}
    scales = {"one": 1.0, "number": 0.75, "column": some((64, 1), 1)}[scale]
    biases = {
        "none": None,
        "number": -0.5,
        "column": some((64, 1), 2),
        "bfloat16": some((64, 1), 2).bfloat16(),
    }[bias]
    for name, value in (("scale", scales), ("bias", biases)):
        if isinstance(value, torch.Tensor):
            ins[name] = value
        else:
            constants[name] = value
    got = check_isa(
        "activation", ins=ins, outs={"dst": ((64, 19), result)}, layout=layout, psum=psum,
        op=getattr(nl, function), **constants,
    )  # fmt: skip
    addend = 0.0 if biases is None else biases
    expected = FUNCTIONS[function]((x.double() * scales + addend).numpy())
    tolerance = 1e-2 if result == "bfloat16" else 2e-6
    torch.testing.assert_close(
        got["dst"].double(), torch.from_numpy(expected), rtol=tolerance, atol=2e-6
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(128, 40), (32, 4, 10), (1, 1)])
def test_activation_reduce_sums_before_rounding(check_isa, nl, dtype, shape):
    x = some(shape)
    got = check_isa(
        "activation_reduce", ins={"data": x},
        outs={"dst": (shape, dtype), "reduce_res": ((shape[0], 1), nl.float32)},
        op=nl.exp, reduce_op=nl.add,
    )  # fmt: skip
    total = x.double().exp().flatten(1).sum(1, True).float()
    torch.testing.assert_close(got["reduce_res"], total, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(got["dst"].float(), x.exp(), rtol=1e-2, atol=1e-6)


def test_registers_live_across_instructions(nl, nisa):
    from trnx.simulator import simulate

    commands = nisa.reduce_cmd

    def kernel(x):
        data = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        out = nl.ndarray((128, 3), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x)
        scrap = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.sbuf)

        def run(command, result=None):
            nisa.activation(
                dst=scrap, op=nl.square, data=data, reduce_op=nl.add, reduce_cmd=command,
                reduce_res=result,
            )  # fmt: skip

        run(commands.reset_reduce)
        run(commands.idle)
        run(commands.reduce, out[:, 0:1])
        run(commands.reset, out[:, 1:2])
        run(commands.reduce)
        run(commands.idle, out[:, 2:3])
        result = nl.ndarray((128, 3), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result, src=out)
        return result

    x = some((128, 10))
    total = x.square().sum(1, True)
    torch.testing.assert_close(simulate(kernel)(x), torch.cat((2 * total, 0 * total, total), 1))


def test_bias_tile_that_is_the_destination(check_isa, nl):
    x, bias, scale = some((128, 1)), some((128, 1), 1), some((128, 1), 2)
    got = check_isa(
        "activation", ins={"data": x, "bias": bias, "scale": scale}, outs={"dst": None},
        inplace={"dst": "bias"}, op=nl.copy,
    )  # fmt: skip
    torch.testing.assert_close(got["dst"], x * scale + bias, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("not an activation function", {"op": "add"}),
        ("reduce_op=nl.maximum is not supported", {"reduce_op": "maximum"}),
        ("needs reduce_op", {"reduce_cmd": "reduce"}),
        ("load_reduce", {"reduce_cmd": "load_reduce", "reduce_op": "add"}),
        ("is a number; trn1 takes a tile", {"target": "trn1", "bias": 0.5}),
        ("they must be equal", {"outs": {"dst": ((8, 3), "float32")}}),
    ],
)
def test_illegal_activation(check_isa, nl, nisa, message, change):
    arguments = {"op": "exp", "outs": {"dst": ((8, 4), "float32")}, **change}
    for key in ("op", "reduce_op"):
        if key in arguments:
            arguments[key] = getattr(nl, arguments[key])
    if "reduce_cmd" in arguments:
        arguments["reduce_cmd"] = getattr(nisa.reduce_cmd, arguments["reduce_cmd"])
    with pytest.raises(IllegalInstructionError, match=message) as caught:
        check_isa("activation", ins={"data": some((8, 4))}, **arguments)
    assert caught.value.location is not None


def test_reciprocal_takes_no_bias_on_trn1(check_isa, nl):
    with pytest.raises(IllegalInstructionError, match="takes no bias"):
        check_isa(
            "activation", ins={"data": some((8, 4)), "bias": some((8, 1))},
            outs={"dst": ((8, 4), nl.float32)}, op=nl.reciprocal, target="trn1",
        )  # fmt: skip


PAIRS = {
    ("multiply", "add"): lambda x, a, b: x * a + b,
    ("multiply", "subtract"): lambda x, a, b: x * a - b,
    ("multiply", "bypass"): lambda x, a, _: x * a,
    ("add", "bypass"): lambda x, a, _: x + a,
    ("subtract", "bypass"): lambda x, a, _: x - a,
    ("bypass", "bypass"): lambda x, *_: x,
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("is_column", [False, True])
def test_activate2(check_isa, nl, pair, is_column):
    x, a, b = some((32, 21)), some((32, 1), 1), some((32, 1), 2)
    ins, constants = {"data": x, "imm0": a, "imm1": b}, {}
    if not is_column:
        ins, constants, a, b = {"data": x}, {"imm0": 1.5, "imm1": -0.25}, 1.5, -0.25
    got = check_isa(
        "activate2", ins=ins, outs={"dst": ((32, 21), nl.float32)}, target="trn3", op=nl.tanh,
        op0=getattr(nl, pair[0]), op1=getattr(nl, pair[1]), **constants,
    )  # fmt: skip
    torch.testing.assert_close(got["dst"], PAIRS[pair](x, a, b).tanh(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "reduce"),
    [
        ("add", lambda x: x.sum(1, True)),
        ("maximum", lambda x: x.amax(1, True)),
        ("minimum", lambda x: x.amin(1, True)),
        ("abs_max", lambda x: x.gather(1, x.abs().argmax(1, True))),
        ("abs_min", lambda x: x.gather(1, x.abs().argmin(1, True))),
    ],
)
def test_activate2_reduces(check_isa, nl, nisa, op, reduce):
    x = some((16, 12))
    got = check_isa(
        "activate2", ins={"data": x},
        outs={"dst": ((16, 12), nl.float32), "reduce_res": ((16, 1), nl.float32)}, target="trn3",
        op=nl.prelu, imm0=0.0, imm1=0.0, op0=nl.bypass, op1=nl.bypass, relu_param=0.5,
        reduce_op=getattr(nl, op), reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )  # fmt: skip
    expected = torch.where(x > 0, x, 0.5 * x)
    torch.testing.assert_close(got["dst"], expected, rtol=0, atol=0)
    torch.testing.assert_close(got["reduce_res"], reduce(expected))


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_activate2_needs_trn3(check_isa, nl, target):
    with pytest.raises(IllegalInstructionError, match="needs trn3"):
        check_isa(
            "activate2", ins={"data": some((8, 4))}, outs={"dst": ((8, 4), nl.float32)},
            target=target, op=nl.exp, imm0=1.0, imm1=0.0, op0=nl.multiply, op1=nl.add,
        )  # fmt: skip
