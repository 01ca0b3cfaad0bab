"""tensor_reduce, tensor_scalar_reduce, exponential, bn_stats, bn_aggr, scans, partition reduce."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trnx.simulator import simulate
from trnx.simulator.errors import IllegalInstructionError

QUICK = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
REDUCTIONS = {
    "add": np.add.reduce,
    "subtract": np.subtract.reduce,
    "multiply": np.multiply.reduce,
    "maximum": np.maximum.reduce,
    "minimum": np.minimum.reduce,
    "logical_and": np.logical_and.reduce,
    "logical_or": np.logical_or.reduce,
    "logical_xor": np.logical_xor.reduce,
}


def some(shape, seed=0, dtype=torch.float32):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if dtype.is_floating_point:
        return values.to(dtype)
    return (values * 20).round().to(dtype)


def close(actual, expected, tolerance=2e-6):
    expected = torch.from_numpy(np.ascontiguousarray(expected)).double()
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axis", [(3,), (2, 3), [1, 2, 3], -1])
@pytest.mark.parametrize("layout", ["dense", "strided", "result-strided"])
def test_tensor_reduce(check_isa, nl, op, axis, layout):
    x = some((32, 3, 4, 5))
    axes = (3,) if axis == -1 else tuple(axis)
    x[0, 0] = 0
    kept = tuple(x.shape[: 4 - len(axes)])
    shape = kept if len(kept) > 1 else (32, 1)
    got = check_isa(
        "tensor_reduce", ins={"data": x}, outs={"dst": (shape, nl.float32)}, layout=layout,
        op=getattr(nl, op), axis=axis,
    )  # fmt: skip
    flat = x.double().reshape(*kept, -1).numpy()
    close(got["dst"].reshape(kept), REDUCTIONS[op](flat, axis=-1).astype(np.float64))


@QUICK
@given(
    partitions=st.sampled_from([1, 127, 128]),
    free=st.sampled_from([1, 2, 127, 128, 129, 513]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int8]),
    op=st.sampled_from(["add", "maximum", "minimum"]),
    negate=st.booleans(),
    keepdims=st.booleans(),
)
def test_tensor_reduce_of_sizes_and_dtypes(
    check_isa, nl, partitions, free, dtype, op, negate, keepdims
):
    x = some((partitions, free), dtype=dtype)
    got = check_isa(
        "tensor_reduce", ins={"data": x}, outs={"dst": ((partitions, 1), nl.float32)},
        op=getattr(nl, op), axis=1, negate=negate, keepdims=keepdims,
    )  # fmt: skip
    expected = REDUCTIONS[op](x.double().numpy(), axis=1)[:, None]
    close(got["dst"], -expected if negate else expected, 1e-5)


@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor"])
@pytest.mark.parametrize("free", [1, 2, 7, 64])
def test_tensor_reduce_of_bits(check_isa, nl, op, free):
    x = torch.randint(0, 2**31 - 1, (4, free), dtype=torch.int32)
    got = check_isa(
        "tensor_reduce", ins={"data": x}, outs={"dst": ((4, 1), nl.int32)}, op=getattr(nl, op),
        axis=1,
    )  # fmt: skip
    assert np.array_equal(got["dst"].numpy()[:, 0], getattr(np, op).reduce(x.numpy(), axis=1))


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("must be an axis", {"axis": True}),
        ("last free axes", {"axis": 1}),
        ("last free axes", {"axis": (0, 1, 2)}),
        ("not a reduction", {"op": "less"}),
        ("gives", {"outs": {"dst": ((8, 2), "float32")}}),
        ("negate", {"op": "bitwise_or", "negate": True}),
        ("integers of one width", {"op": "bitwise_or"}),
    ],
)
def test_illegal_tensor_reduce(check_isa, nl, message, change):
    arguments = {"op": "add", "axis": 2, "outs": {"dst": ((8, 3), "float32")}, **change}
    arguments["op"] = getattr(nl, arguments["op"])
    with pytest.raises(IllegalInstructionError, match=message):
        check_isa("tensor_reduce", ins={"data": some((8, 3, 4))}, **arguments)


@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("result", ["float32", "bfloat16"])
def test_tensor_scalar_reduce(check_isa, nl, op, result):
    x, s = some((128, 5, 6)), some((128, 1), 1)
    got = check_isa(
        "tensor_scalar_reduce", ins={"data": x, "operand0": s},
        outs={"dst": ((128, 5, 6), result), "reduce_res": ((128, 1), nl.float32)},
        op0=nl.add, reduce_op=getattr(nl, op), reduce_res_negate=True,
    )  # fmt: skip
    value = (x.flatten(1) + s).numpy()
    close(got["reduce_res"], -REDUCTIONS[op](value.astype(np.float64), axis=1)[:, None], 1e-5)
    torch.testing.assert_close(
        got["dst"], torch.from_numpy(value).view(128, 5, 6).to(got["dst"].dtype), rtol=0, atol=0
    )


def test_vector_accumulator_is_shared_and_loaded(nl, nisa):
    commands = nisa.reduce_cmd

    def kernel(x, start):
        data = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        init = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        out = nl.ndarray((128, 3), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x)
        nisa.dma_copy(dst=init, src=start)

        def run(column, **more):
            nisa.tensor_scalar_reduce(
                dst=data, data=data, op0=nl.add, operand0=0.0, reduce_op=nl.add,
                reduce_res=out[:, column : column + 1], **more,
            )  # fmt: skip

        run(0)
        run(1, reduce_cmd=commands.reduce)
        run(2, reduce_cmd=commands.load_reduce, reduce_init=init)
        result = nl.ndarray((128, 3), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result, src=out)
        return result

    x, start = some((128, 9)), some((128, 1), 1)
    total = x.sum(1, True)
    torch.testing.assert_close(
        simulate(kernel)(x, start), torch.cat((total, 2 * total, total + start), 1)
    )


def test_exponential_on_trn3(check_isa, nl, nisa):
    x, top = some((64, 33)), some((64, 1), 1)
    got = check_isa(
        "exponential", ins={"src": x, "max_value": top},
        outs={"dst": ((64, 33), nl.bfloat16), "reduce_res": ((64, 1), nl.float32)}, target="trn3",
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )  # fmt: skip
    expected = (x - top).exp()
    torch.testing.assert_close(got["dst"], expected.bfloat16())
    torch.testing.assert_close(got["reduce_res"], expected.sum(1, True))
    for target in ("trn1", "trn2"):
        with pytest.raises(IllegalInstructionError, match="needs trn3"):
            check_isa(
                "exponential", ins={"src": x}, outs={"dst": ((64, 33), nl.float32)}, target=target
            )


@pytest.mark.parametrize("free", [1, 2, 3, 127, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bn_stats_and_aggr(check_isa, nl, free, dtype):
    x = some((128, free), dtype=dtype) + 3
    stats = check_isa("bn_stats", ins={"data": x}, outs={"dst": ((128, 6), nl.float32)})["dst"]
    wide = x.double().numpy()
    for first in (0, 1):
        part = wide[:, first::2]
        count = part.shape[1]
        mean = part.mean(1) if count else np.zeros(128)
        spread = part.var(1) * count if count else np.zeros(128)
        expected = np.stack([np.full(128, count), mean, spread], 1)
        close(stats[:, 3 * first : 3 * first + 3], expected, 1e-5)
    merged = check_isa("bn_aggr", ins={"data": stats}, outs={"dst": ((128, 2), nl.float32)})["dst"]
    close(merged, np.stack([wide.mean(1), wide.var(1)], 1), 1e-5)


def test_bn_limits(check_isa, nl):
    with pytest.raises(IllegalInstructionError, match="maximum is 512"):
        check_isa("bn_stats", ins={"data": some((8, 513))}, outs={"dst": ((8, 6), nl.float32)})
    with pytest.raises(IllegalInstructionError, match="multiple of 3"):
        check_isa("bn_aggr", ins={"data": some((8, 8))}, outs={"dst": ((8, 2), nl.float32)})


SCAN_OPS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": np.less,
}


def scanned(a, b, start, op0, op1, reverse0, reverse1):
    state, columns = start, []
    for i in range(a.shape[1]):
        pair = (state, a[:, i]) if reverse0 else (a[:, i], state)
        value = SCAN_OPS[op0](*pair).astype(np.float32)
        pair = (b[:, i], value) if reverse1 else (value, b[:, i])
        state = SCAN_OPS[op1](*pair).astype(np.float32)
        columns.append(state)
    return np.stack(columns, 1)


@QUICK
@given(
    ops=st.tuples(st.sampled_from(sorted(SCAN_OPS)), st.sampled_from(sorted(SCAN_OPS))),
    reverse=st.tuples(st.booleans(), st.booleans()),
    free=st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    is_column=st.booleans(),
)
def test_tensor_tensor_scan(check_isa, nl, ops, reverse, free, dtype, is_column):
    a, b = some((32, free), 1, dtype), some((32, free), 2, dtype)
    start = some((32, 1), 3) if is_column else 0.5
    ins, constants = {"data0": a, "data1": b}, {}
    if is_column:
        ins["initial"] = start
    else:
        constants["initial"] = start
    got = check_isa(
        "tensor_tensor_scan", ins=ins, outs={"dst": ((32, free), nl.float32)},
        op0=getattr(nl, ops[0]), op1=getattr(nl, ops[1]), reverse0=reverse[0],
        reverse1=reverse[1], **constants,
    )  # fmt: skip
    first = start.numpy()[:, 0] if is_column else np.full(32, 0.5, np.float32)
    expected = scanned(a.float().numpy(), b.float().numpy(), first, *ops, *reverse)
    assert np.array_equal(got["dst"].numpy(), expected)


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("result", ["float32", "bfloat16"])
def test_tensor_scalar_cumulative(check_isa, nl, nisa, op, result):
    x, scale, start = some((64, 17)), some((64, 1), 1), some((64, 1), 2)
    outs = {"dst": ((64, 17), result)}
    got = check_isa(
        "tensor_scalar_cumulative", ins={"src": x, "imm0": scale, "imm1": start}, outs=outs,
        op0=nl.multiply, op1=getattr(nl, op), reduce_cmd=nisa.reduce_cmd.load_reduce,
    )  # fmt: skip
    value = (x * scale).numpy()
    state, columns = start.numpy()[:, 0], []
    for i in range(17):
        state = SCAN_OPS[op](value[:, i], state)
        columns.append(state)
    expected = torch.from_numpy(np.stack(columns, 1)).to(got["dst"].dtype)
    torch.testing.assert_close(got["dst"], expected, rtol=0, atol=0)


def test_tensor_scalar_cumulative_chains(nl, nisa):
    def kernel(x):
        data = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x)
        common = functools.partial(nisa.tensor_scalar_cumulative, op0=nl.add, op1=nl.add, imm0=0.0)
        half = x.shape[1] // 2
        common(dst=data[:, :half], src=data[:, :half])
        common(dst=data[:, half:], src=data[:, half:], reduce_cmd=nisa.reduce_cmd.reduce)
        result = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result, src=data)
        return result

    x = some((128, 20))
    assert np.array_equal(simulate(kernel)(x).numpy(), np.add.accumulate(x.numpy(), 1))


def test_illegal_cumulative(check_isa, nl, nisa):
    x = some((8, 4))
    for message, constants in (
        ("op1", {"op1": nl.less}),
        ("needs imm1", {"op1": nl.add, "reduce_cmd": nisa.reduce_cmd.load_reduce}),
        ("not supported", {"op1": nl.add, "reduce_cmd": nisa.reduce_cmd.idle}),
    ):
        with pytest.raises(IllegalInstructionError, match=message):
            check_isa(
                "tensor_scalar_cumulative", ins={"src": x}, outs={"dst": ((8, 4), nl.float32)},
                op0=nl.add, imm0=0.0, **constants,
            )  # fmt: skip
    with pytest.raises(IllegalInstructionError, match="src is int32"):
        check_isa(
            "tensor_scalar_cumulative", ins={"src": x.to(torch.int32)},
            outs={"dst": ((8, 4), nl.float32)}, op0=nl.add, op1=nl.add, imm0=0.0,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("op", "reduce"), [("add", np.sum), ("average", np.mean), ("maximum", np.max)]
)
def test_tensor_partition_reduce(check_isa, nl, op, reduce):
    x = some((128, 4, 5))
    got = check_isa(
        "tensor_partition_reduce", ins={"data": x}, outs={"dst": ((1, 20), nl.float32)},
        op=getattr(nl, op),
    )  # fmt: skip
    close(got["dst"].view(20), reduce(x.double().numpy().reshape(128, 20), axis=0), 1e-5)


def test_tensor_partition_reduce_of_bits(check_isa, nl):
    x = torch.randint(0, 2**31 - 1, (100, 6), dtype=torch.int32)
    got = check_isa(
        "tensor_partition_reduce", ins={"data": x}, outs={"dst": ((1, 6), nl.int32)},
        op=nl.bitwise_or,
    )  # fmt: skip
    assert np.array_equal(got["dst"].numpy()[0], np.bitwise_or.reduce(x.numpy(), axis=0))
