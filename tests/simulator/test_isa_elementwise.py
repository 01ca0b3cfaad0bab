"""tensor_tensor, tensor_scalar, scalar_tensor_tensor, reciprocal against numpy in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trnx.simulator.errors import IllegalInstructionError

QUICK = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater_equal": np.greater_equal,
    "greater": np.greater,
    "less_equal": np.less_equal,
    "less": np.less,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
UNARY = {
    "abs": np.abs,
    "square": np.square,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "reciprocal": lambda x: np.float32(1) / x,
}


def some(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 4
    # Equal values and zeros, for comparisons and logical operators.
    values[..., ::3] = values[..., ::3].round()
    return values.to(dtype) if dtype.is_floating_point else values.round().to(dtype)


def f32(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.float32).numpy()


def rounded(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """One rounding to `dtype`: integers to nearest even, saturating."""
    values = np.asarray(values, dtype=np.float32)
    if dtype.is_floating_point:
        return torch.from_numpy(values).to(dtype)
    info = torch.iinfo(dtype)
    wide = np.clip(np.rint(values.astype(np.float64)), info.min, info.max)
    return torch.from_numpy(wide).to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("layout", ["dense", "strided", "margin", "result-strided"])
def test_tensor_tensor_equals_numpy(check_isa, nl, op, layout):
    a, b = some((128, 33)), some((128, 33), seed=1)
    got = check_isa(
        "tensor_tensor",
        ins={"data1": a, "data2": b},
        outs={"dst": ((128, 33), nl.float32)},
        layout=layout,
        op=getattr(nl, op),
    )
    same(got["dst"], rounded(BINARY[op](f32(a), f32(b)), torch.float32))


@QUICK
@given(
    op=st.sampled_from(["add", "subtract", "multiply", "maximum", "less"]),
    partitions=st.sampled_from([1, 5, 64, 127, 128]),
    free=st.integers(1, 130),
    dtypes=st.tuples(*[st.sampled_from((*FLOATS, torch.int8, torch.uint16))] * 3),
    target=st.sampled_from(["trn1", "trn2", "trn3"]),
)
def test_tensor_tensor_rounds_once(check_isa, nl, op, partitions, free, dtypes, target):
    shape = (partitions, free)
    a, b = some(shape, dtypes[0]), some(shape, dtypes[1], seed=1)
    got = check_isa(
        "tensor_tensor",
        ins={"data1": a, "data2": b},
        outs={"dst": (shape, str(dtypes[2]).removeprefix("torch."))},
        target=target,
        op=getattr(nl, op),
    )
    same(got["dst"], rounded(BINARY[op](f32(a), f32(b)), dtypes[2]))


def test_tensor_tensor_ranks_may_differ(check_isa, nl):
    a, b = some((128, 4, 6)), some((128, 24), seed=1)
    got = check_isa(
        "tensor_tensor",
        ins={"data1": a, "data2": b},
        outs={"dst": ((128, 2, 12), nl.float32)},
        layout="strided",
        op=nl.add,
    )
    same(got["dst"].reshape(128, 24), a.reshape(128, 24) + b)


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "maximum", "less"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint32])
def test_wide_integers_are_exact(check_isa, nl, op, dtype):
    values = torch.tensor([0, 1, -1, 2**24 + 1, 2**31 - 1, -(2**31), 123456789, 7])
    if dtype is torch.uint32:
        values = values & 0xFFFFFFFF
    a = values.repeat(4, 1).to(dtype)
    b = values.flip(0).repeat(4, 1).to(dtype)
    got = check_isa(
        "tensor_tensor",
        ins={"data1": a, "data2": b},
        outs={"dst": (a.shape, str(dtype).removeprefix("torch."))},
        op=getattr(nl, op),
    )
    with np.errstate(over="ignore"):
        expected = BINARY[op](a.numpy(), b.numpy()).astype(a.numpy().dtype)
    assert np.array_equal(got["dst"].numpy(), expected)


def test_vector_engine_computes_integers_in_float32(check_isa, nl, nisa):
    a = torch.full((2, 8), 2**24 + 1, dtype=torch.int32)
    b = torch.zeros((2, 8), dtype=torch.int32)
    got = check_isa(
        "tensor_tensor",
        ins={"data1": a, "data2": b},
        outs={"dst": ((2, 8), nl.int32)},
        op=nl.add,
        engine=nisa.engine.vector,
    )
    assert got["dst"].unique().tolist() == [2**24]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32])
@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitvec_operators_act_on_bits(check_isa, nl, dtype, op):
    a = torch.arange(-32, 32).repeat(2, 1).to(dtype)
    b = torch.arange(0, 64).repeat(2, 1).to(dtype)
    kind = str(dtype).removeprefix("torch.")
    got = check_isa(
        "tensor_tensor", ins={"data1": a, "data2": b}, outs={"dst": ((2, 64), kind)},
        op=getattr(nl, op),
    )  # fmt: skip
    assert np.array_equal(got["dst"].numpy(), getattr(np, op)(a.numpy(), b.numpy()))


def test_shifts_and_invert(check_isa, nl):
    a = torch.tensor([[-8, -1, 1, 2**30]] * 2, dtype=torch.int32)
    bits = a.numpy().view(np.uint32)

    def shifted(op0, operand0, op1=None, operand1=None):
        got = check_isa(
            "tensor_scalar", ins={"data": a}, outs={"dst": ((2, 4), nl.int32)}, op0=op0,
            operand0=operand0, op1=op1, operand1=operand1,
        )  # fmt: skip
        return got["dst"].numpy().view(np.uint32)

    assert np.array_equal(shifted(nl.right_shift, 3), bits >> 3)
    assert np.array_equal(shifted(nl.left_shift, 4), bits << 4)
    assert np.array_equal(shifted(nl.invert, None), ~bits)
    both = shifted(nl.right_shift, 28, nl.bitwise_and, 0x3)
    assert np.array_equal(both, (bits >> 28) & 3)


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("reverse", [False, True])
def test_tensor_scalar_with_a_number(check_isa, nl, op, reverse):
    a = some((64, 17))
    got = check_isa(
        "tensor_scalar",
        ins={"data": a},
        outs={"dst": ((64, 17), nl.float32)},
        layout="strided",
        op0=getattr(nl, op),
        operand0=1.1,
        reverse0=reverse,
    )
    pair = (np.float32(1.1), f32(a)) if reverse else (f32(a), np.float32(1.1))
    same(got["dst"], rounded(BINARY[op](*pair), torch.float32))


@QUICK
@given(
    ops=st.tuples(st.sampled_from(sorted(BINARY)), st.sampled_from(sorted(BINARY))),
    reverse=st.tuples(st.booleans(), st.booleans()),
    columns=st.tuples(st.booleans(), st.booleans()),
    free=st.integers(1, 70),
    source=st.sampled_from((*FLOATS, torch.int16)),
    result=st.sampled_from((*FLOATS, torch.int8)),
    layout=st.sampled_from(["dense", "strided", "result-strided"]),
)
def test_tensor_scalar_of_two_operators(
    check_isa, nl, ops, reverse, columns, free, source, result, layout
):
    a = some((32, free), source)
    operands, ins = {}, {"data": a}
    for i, is_column in enumerate(columns):
        column = some((32, 1), seed=i + 2)
        operands[i] = f32(column) if is_column else np.float32(0.7 - i)
        if is_column:
            ins[f"operand{i}"] = column
    constants = {f"operand{i}": float(operands[i]) for i in (0, 1) if f"operand{i}" not in ins}
    got = check_isa(
        "tensor_scalar", ins=ins, outs={"dst": ((32, free), str(result).removeprefix("torch."))},
        layout=layout, op0=getattr(nl, ops[0]), reverse0=reverse[0], op1=getattr(nl, ops[1]),
        reverse1=reverse[1], **constants,
    )  # fmt: skip
    value = f32(a)
    for i in (0, 1):
        pair = (operands[i], value) if reverse[i] else (value, operands[i])
        value = BINARY[ops[i]](*pair).astype(np.float32)
    same(got["dst"], rounded(value, result))


@pytest.mark.parametrize("op", UNARY)
def test_tensor_scalar_unary(check_isa, nl, op):
    a = some((16, 9)) + 0.5
    got = check_isa(
        "tensor_scalar", ins={"data": a}, outs={"dst": ((16, 9), nl.float32)},
        op0=getattr(nl, op), operand0=None, op1=nl.multiply, operand1=3.0,
    )  # fmt: skip
    expected = UNARY[op](f32(a)) * np.float32(3)
    torch.testing.assert_close(got["dst"], torch.from_numpy(expected), rtol=2e-7, atol=0)


def test_tensor_scalar_bounds_are_one_clamp(check_isa, nl):
    a = some((16, 40))
    for low, high in ((-1.0, 2.0), (2.0, -1.0)):
        got = check_isa(
            "tensor_scalar", ins={"data": a}, outs={"dst": ((16, 40), nl.float32)},
            op0=nl.maximum, operand0=low, op1=nl.minimum, operand1=high,
        )  # fmt: skip
        same(got["dst"], torch.from_numpy(np.minimum(np.maximum(f32(a), low), high)))


def test_integer_operands_keep_integers_exact(check_isa, nl):
    a = torch.tensor([[2**24 + 1, -5, 2**30, 7]], dtype=torch.int32)
    got = check_isa(
        "tensor_scalar", ins={"data": a}, outs={"dst": ((1, 4), nl.int32)},
        op0=nl.multiply, operand0=1, op1=nl.add, operand1=3,
    )  # fmt: skip
    assert got["dst"].tolist() == [[2**24 + 4, -2, 2**30 + 3, 10]]


@pytest.mark.parametrize("which", ["data", "operand1"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_scalar_tensor_tensor_in_place(check_isa, nl, which, dtype):
    a, b, s = some((128, 65), dtype), some((128, 65), dtype, seed=1), some((128, 1), seed=2)
    got = check_isa(
        "scalar_tensor_tensor",
        ins={"data": a, "operand0": s, "operand1": b},
        outs={"dst": None},
        inplace={"dst": which},
        op0=nl.multiply,
        op1=nl.subtract,
        reverse1=True,
    )
    same(got["dst"], rounded(f32(b) - f32(a) * f32(s), dtype))


def test_in_place_with_a_column_that_is_the_destination(check_isa, nl):
    a = some((128, 1))
    got = check_isa(
        "tensor_scalar", ins={"data": a}, outs={"dst": None}, inplace={"dst": "data"},
        op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=1.0,
    )  # fmt: skip
    same(got["dst"], a * 2 + 1)


def test_second_operand_survives_the_first_stage(nl, nisa):
    """dst and operand1 are one tile: the first stage must not destroy it."""
    from trnx.simulator import simulate

    def kernel(x, s):
        data = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        tile = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x)
        nisa.dma_copy(dst=tile, src=s)
        nisa.tensor_scalar(
            dst=tile, data=data, op0=nl.multiply, operand0=tile, op1=nl.subtract, operand1=tile
        )
        out = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    x, s = some((128, 1)), some((128, 1), seed=3)
    got = simulate(kernel)(x, s)
    assert got.shape == x.shape
    same(got, x * s - s)


@pytest.mark.parametrize("dtype", FLOATS)
def test_reciprocal(check_isa, dtype):
    a = some((128, 12), dtype)
    a[a == 0] = 1
    kind = str(dtype).removeprefix("torch.")
    got = check_isa("reciprocal", ins={"data": a}, outs={"dst": ((128, 12), kind)}, psum=("dst",))
    same(got["dst"], rounded(np.float32(1) / f32(a), dtype))


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("both in PSUM", {"psum": ("data1", "data2")}),
        ("they must be equal", {"outs": {"dst": ((8, 5), "float32")}}),
        ("engine", {"engine": "scalar"}),
        ("PSUM", {"psum": ("data1",), "op": "power"}),
        ("takes one operand", {"op": "abs"}),
        ("integers only", {"op": "bitwise_and"}),
        ("needs trn3", {"op": "abs_max"}),
        ("not an ALU operator", {"op": "exp"}),
    ],
)
def test_illegal_tensor_tensor(check_isa, nl, nisa, message, change):
    a = some((8, 4))
    arguments = {"ins": {"data1": a, "data2": a}, "outs": {"dst": ((8, 4), "float32")}, "op": "add"}
    arguments |= change
    arguments["op"] = getattr(nl, arguments["op"])
    if "engine" in arguments:
        arguments["engine"] = getattr(nisa.engine, arguments["engine"])
    with pytest.raises(IllegalInstructionError, match=message) as caught:
        check_isa("tensor_tensor", **arguments)
    assert caught.value.location is not None


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("both bitvec or both arithmetic", {"op1": "bitwise_and", "operand1": 1}),
        ("without op1", {"operand1": 1.0}),
        ("operand0 is missing", {"operand0": None}),
        ("must be None or 0", {"op0": "abs", "operand0": 3.0}),
        ("engine", {"op0": "subtract", "engine": "scalar"}),
        ("engine", {"engine": "scalar", "target": "trn1"}),
        ("engine", {"engine": "gpsimd"}),
        ("operand0 must be a number", {"operand0": "two"}),
        ("operand0 must be a number", {"operand0": "2"}),
        ("operand0 must be a number", {"operand0": [2.0]}),
    ],
)
def test_illegal_tensor_scalar(check_isa, nl, nisa, message, change):
    arguments = {"op0": "multiply", "operand0": 2.0, **change}
    for key in ("op0", "op1"):
        if key in arguments:
            arguments[key] = getattr(nl, arguments[key])
    if "engine" in arguments:
        arguments["engine"] = getattr(nisa.engine, arguments["engine"])
    with pytest.raises(IllegalInstructionError, match=message):
        check_isa(
            "tensor_scalar", ins={"data": some((8, 4))}, outs={"dst": ((8, 4), nl.float32)},
            **arguments,
        )  # fmt: skip


def test_operand_tile_must_be_float32_and_a_column(check_isa, nl):
    for operand in (some((8, 1), torch.bfloat16), some((8, 4))):
        with pytest.raises(IllegalInstructionError, match="operand0"):
            check_isa(
                "tensor_scalar", ins={"data": some((8, 4)), "operand0": operand},
                outs={"dst": ((8, 4), nl.float32)}, op0=nl.add,
            )  # fmt: skip


def test_scalar_engine_on_trn2_multiplies_and_adds(check_isa, nl, nisa):
    a = some((8, 4))
    got = check_isa(
        "tensor_scalar", ins={"data": a}, outs={"dst": ((8, 4), nl.float32)}, op0=nl.multiply,
        operand0=3.0, op1=nl.add, operand1=1.0, engine=nisa.engine.scalar,
    )  # fmt: skip
    same(got["dst"], a * 3 + 1)


@pytest.mark.parametrize(("op", "pick"), [("abs_max", np.greater), ("abs_min", np.less)])
def test_magnitude_operators_on_trn3(check_isa, nl, op, pick):
    a = torch.tensor([[1.0, -5.0, 2.0, -2.0]])
    b = torch.tensor([[-1.0, 3.0, 4.0, 0.0]])
    got = check_isa(
        "tensor_tensor", ins={"data1": a, "data2": b}, outs={"dst": ((1, 4), nl.float32)},
        target="trn3", op=getattr(nl, op),
    )  # fmt: skip
    left, right = a.numpy(), b.numpy()
    expected = np.where(pick(np.abs(left), np.abs(right)), left, right)
    same(got["dst"], torch.from_numpy(expected))


@pytest.mark.parametrize(("op1", "is_legal"), [("rsqrt", False), ("abs", False), ("add", True)])
def test_scalar_tensor_tensor_needs_two_operands_for_op1(check_isa, nl, op1, is_legal):
    a, b = some((8, 4)), some((8, 4), seed=1)
    arguments = {
        "ins": {"data": a, "operand1": b}, "outs": {"dst": ((8, 4), nl.float32)},
        "op0": nl.multiply, "operand0": 2.0, "op1": getattr(nl, op1),
    }  # fmt: skip
    if is_legal:
        same(check_isa("scalar_tensor_tensor", **arguments)["dst"], a * 2 + b)
        return
    with pytest.raises(IllegalInstructionError, match=f"op1=nl.{op1} takes one operand"):
        check_isa("scalar_tensor_tensor", **arguments)


@pytest.mark.parametrize(
    ("op", "advice"),
    [
        ("divide", "multiply by what nisa.reciprocal gives"),
        ("exp", r"nisa.activation\(op=nl.exp\) computes it"),
        ("abs_max", "needs trn3; the target is trn2; nl.abs, then nl.maximum"),
        ("floor", "see the table of math operators"),
    ],
)
def test_operators_that_the_alu_lacks(check_isa, nl, op, advice):
    with pytest.raises(IllegalInstructionError, match=advice):
        check_isa(
            "tensor_tensor", ins={"data1": torch.ones(2, 3), "data2": torch.ones(2, 3)},
            outs={"dst": ((2, 3), nl.float32)}, op=getattr(nl, op),
        )  # fmt: skip
