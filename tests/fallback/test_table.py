"""Every entry of the ATen-to-JAX table against eager, on calls recorded from OpInfo samples.

A dispatch mode records the ATen calls that forward and backward of the samples make, so that each
overload is tried with arguments that PyTorch itself makes. Many recorded calls form one graph,
which XLA compiles once. The quick run tries one call of each overload, besides those written here;
`--slow` many.
"""

from __future__ import annotations

import logging
import operator
import random
import re
import warnings
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from suites.opinfo_samples import samples_of
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

pytest.importorskip("jax")

from trnx.fallback.aten_to_jax import TABLE
from trnx.fallback.aten_to_jax.table import overload, register
from trnx.fallback.errors import DuplicateOpError
from trnx.fallback.xla import XlaEngine

Call = tuple[tuple[Any, ...], dict[str, Any]]
QUICK, THOROUGH, BATCH = 1, 6, 24  # recorded calls of an overload; calls in a graph
SAMPLES = {torch.float32: 3, torch.int64: 1, torch.bfloat16: 1}
# OpInfo's ops whose later samples reach overloads that their first ones do not.
MORE_SAMPLES = re.compile(
    r"all|any|copysign|count_nonzero|lerp|scatter|_native_batch_norm_legit"
    r"|nn\.functional\.(pad|interpolate|upsample_nearest)"
)
MANY = 60
SEED = 7


class Recorder(TorchDispatchMode):
    """Keeps calls of table ops, distinct in shapes, dtypes and constants."""

    def __init__(self, wanted: set[Any], limit: int) -> None:
        super().__init__()
        self.wanted, self.limit = wanted, limit
        self.calls: dict[Any, dict[str, Call]] = defaultdict(dict)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.wanted and len(self.calls[func]) < self.limit:
            key = str(tree_map(_signature, (args, kwargs)))
            if key not in self.calls[func] and _small((args, kwargs)):
                self.calls[func][key] = tree_map(_copy, (tuple(args), dict(kwargs)))
        return func(*args, **kwargs)


def _signature(x: Any) -> Any:
    return (tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x


def _small(values: Any) -> bool:
    tensors = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
    return all(x.numel() < 20_000 and x.layout == torch.strided for x in tensors)


def _copy(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return (
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)
        if not any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape, strict=True))
        else x.detach().clone()
    )


def _run(op: Any, dtype: torch.dtype, samples: int) -> None:
    grad = dtype.is_floating_point and op.supports_autograd
    for i, sample in enumerate(samples_of(op, dtype, requires_grad=grad)):
        if i >= samples:
            return
        out = op.op(sample.input, *sample.args, **sample.kwargs)
        if grad:
            leaves = [
                x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.requires_grad
            ]
            if leaves:
                torch.autograd.backward(leaves, [torch.randn_like(x) for x in leaves])


def record(wanted: set[Any], limit: int, ops: Any = op_db) -> dict[Any, list[Call]]:
    """Calls of the wanted overloads made by OpInfo's samples."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    recorder = Recorder(wanted, limit)
    logging.disable(logging.CRITICAL)  # PyTorch's trace logs, which pytest would capture
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ops:
            for dtype, samples in SAMPLES.items():
                if dtype not in op.supported_dtypes("cpu"):
                    continue
                try:
                    with recorder:
                        _run(op, dtype, MANY if MORE_SAMPLES.fullmatch(op.name) else samples)
                except Exception:  # noqa: BLE001 - a sample that eager itself refuses
                    continue
    logging.disable(logging.NOTSET)
    return {op: list(calls.values()) for op, calls in recorder.calls.items()}


@dataclass
class Batch:
    """One graph of many independent calls, with its tensors and the outputs of each call."""

    graph_module: fx.GraphModule
    tensors: list[torch.Tensor]
    nodes: list[fx.Node]
    spans: list[slice]


def batch_of(calls: list[tuple[Any, Call]]) -> Batch:
    """All calls side by side in one graph, with metadata."""
    graph, mode = fx.Graph(), FakeTensorMode(allow_non_fake_inputs=False)
    tensors: list[torch.Tensor] = []
    nodes: list[fx.Node] = []
    spans: list[slice] = []
    outputs: list[fx.Node] = []
    placeholders = []
    for _, call in calls:
        for x in tree_leaves(call):
            if isinstance(x, torch.Tensor):
                placeholders.append(graph.placeholder(f"x{len(placeholders)}"))
                placeholders[-1].meta["val"] = mode.from_tensor(x)
                tensors.append(x)
    feed = iter(placeholders)
    for op, call in calls:
        leaves, spec = tree_flatten(call)
        given = [next(feed) if isinstance(x, torch.Tensor) else x for x in leaves]
        fakes = [x.meta["val"] if isinstance(x, fx.Node) else x for x in given]
        args, kwargs = tree_unflatten(given, spec)
        node = graph.call_function(op, args, kwargs)
        args, kwargs = tree_unflatten(fakes, spec)
        with mode:
            node.meta["val"] = op(*args, **kwargs)
        members = _outputs(graph, node)
        nodes.append(node)
        spans.append(slice(len(outputs), len(outputs) + len(members)))
        outputs += members
    graph.output(tuple(outputs))
    return Batch(fx.GraphModule(torch.nn.Module(), graph), tensors, nodes, spans)


def _outputs(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return [node]
    outputs = []
    for i, member in enumerate(value):
        if isinstance(member, torch.Tensor):
            item = graph.call_function(operator.getitem, (node, i))
            item.meta["val"] = member
            outputs.append(item)
    return outputs


UNDEFINED = ("empty", "new_empty")  # ops whose values eager leaves undefined


def compare(calls: list[tuple[Any, Call]]) -> tuple[list[str], set[Any]]:
    """What differs from eager among these calls, and the ops that the engine took."""
    engine = XlaEngine()
    nodes = batch_of(calls).nodes
    taken = [c for c, n in zip(calls, nodes, strict=True) if engine.supports(n) is None]
    if not taken:
        return [], set()
    batch = batch_of(taken)
    expected = [x.clone() for x in batch.graph_module(*batch.tensors)]
    actual = engine.compile(batch.graph_module)(batch.tensors)
    wide = _in_float32(batch)
    promised = [n.meta["val"].stride() for n in batch.graph_module.graph.output_node().args[0]]
    wrong = []
    for (op, call), span in zip(taken, batch.spans, strict=True):
        try:
            assert [x.stride() for x in actual[span]] == promised[span]
            for i in range(span.start, span.stop):
                assert (actual[i].shape, actual[i].dtype) == (expected[i].shape, expected[i].dtype)
                if not op.__name__.startswith(UNDEFINED):
                    _assert_close(actual[i], expected[i], None if wide is None else wide[i])
        except AssertionError as error:
            wrong.append(f"{op} {tree_map(_signature, call)}: {error}")
    return wrong, {op for op, _ in taken}


def _in_float32(batch: Batch) -> Any:
    """What eager computes in float32 on the same bf16 values, None without bf16."""
    if not any(x.dtype == torch.bfloat16 for x in batch.tensors):
        return None
    widened = [x.float() if x.dtype == torch.bfloat16 else x for x in batch.tensors]
    try:
        return batch.graph_module(*widened)
    except RuntimeError:  # a dtype among the arguments
        return None


def _assert_close(actual: torch.Tensor, expected: torch.Tensor, wide: torch.Tensor | None) -> None:
    """Within torch's tolerances of eager; half precision may instead be that close to float32."""
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if actual.dtype == torch.float32 else {}
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)
    except AssertionError:
        if wide is None or actual.dtype != torch.bfloat16:
            raise
        torch.testing.assert_close(actual, wide.to(actual.dtype), equal_nan=True)


# ------------------------------------------------------------- what no sample of OpInfo dispatches


def _by_hand() -> list[tuple[str, Call]]:
    """Calls of entries that OpInfo's samples do not reach."""
    g = torch.Generator().manual_seed(SEED)

    def r(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g)

    def n(*shape: int, high: int = 9) -> torch.Tensor:
        return torch.randint(1, high, shape, generator=g)

    x, image, line, volume = r(3, 4), r(2, 3, 5, 6), r(2, 3, 7), r(1, 2, 4, 5, 6)
    labels = torch.tensor([3, 1, 0])
    mask = x > 0
    q, k, v = r(2, 4, 5, 8), r(2, 2, 6, 8), r(2, 2, 6, 8)
    calls: list[tuple[str, Any]] = [
        *((f"{name}.{kind}", (n(4), other))
          for name in ("__lshift__", "__rshift__")
          for kind, other in (("Scalar", 2), ("Tensor", n(4, high=4)))),
        ("bitwise_left_shift.Tensor_Scalar", (n(4), 3)),
        ("bitwise_right_shift.Tensor_Scalar", (n(4), 1)),
        *((f"bitwise_{name}.Scalar", (n(5), 6)) for name in ("and", "or", "xor")),
        *((f"bitwise_{name}.Scalar_Tensor", (6, n(5))) for name in ("and", "or", "xor")),
        ("_euclidean_dist", (r(4, 3), r(5, 3))),
        ("_fused_rms_norm", (x, [4], r(4), 1e-5)),
        ("_native_batch_norm_legit_functional",
         (image, r(3), r(3), r(3), r(3).abs(), True, 0.1, 1e-5)),
        ("_native_batch_norm_legit_functional",
         (image, None, None, r(3), r(3).abs(), False, 0.1, 1e-5)),
        ("_native_batch_norm_legit_no_training",
         (image, r(3), r(3), r(3), r(3).abs(), 0.1, 1e-5)),
        ("native_batch_norm", (image, r(3), r(3), None, None, True, 0.1, 1e-5)),
        ("_reshape_copy", (x, [2, 6])),
        ("_reshape_alias", (x, [2, 6], [6, 1])),
        ("_unsafe_index.Tensor", (x, [None, n(3, high=4)])),
        ("_unsafe_index_put", (x, [n(2, high=3)], r(2, 4), True)),
        *((f"adaptive_avg_pool{d}d", (t, [3] * d))
          for d, t in ((1, line), (2, image), (3, volume))),
        ("avg_pool1d", (line, [3], [2], [1])),
        ("argsort.stable", (n(9), ), {"stable": True, "dim": 0}),
        ("bucketize.Scalar", (3, torch.arange(5.0))),
        ("clamp_max", (x, 0.5)),
        ("cumprod", (n(4), 0)),
        ("contiguous", (x.t(),)),
        ("copy", (x, r(4))),
        ("detach_copy", (x,)),
        ("div.Scalar_mode", (x, 0.3), {"rounding_mode": "floor"}),
        ("div.Scalar_mode", (n(5) - 4, 3), {"rounding_mode": "trunc"}),
        ("fill.Tensor", (x, torch.tensor(2.0))),
        ("fix", (x * 3,)),
        ("floor_divide.Scalar", (n(5) - 4, -3)),
        ("fmod.Scalar", (n(5) - 4, -3)),
        ("remainder.Scalar_Tensor", (5, n(4))),
        ("isfinite", (x / 0,)),
        ("isin.Scalar_Tensor", (3, n(4))),
        ("isin.Tensor_Scalar", (n(4), 3)),
        ("lift", (x,)),
        ("lift_fresh_copy", (x,)),
        ("linalg_matmul", (x, r(4, 2))),
        ("matmul", (r(2, 3, 4), r(4))),
        ("linear", (r(2, 3, 4), r(5, 4), r(5))),
        ("linear", (r(3, 4).bfloat16(), r(5, 4).bfloat16())),
        ("new_zeros", (x, [2, 3])),
        ("norm.Scalar", (x, 3)),
        ("norm.ScalarOpt_dtype", (x, 2), {"dtype": torch.float64}),
        ("outer", (r(3), r(4))),
        ("reshape", (x, [-1, 2])),
        ("resolve_conj", (x,)),
        ("resolve_neg", (x,)),
        ("scatter.value_reduce", (x, 0, n(2, 4, high=3), 2.0), {"reduce": "multiply"}),
        ("searchsorted.Scalar", (torch.arange(5.0), 2.5)),
        ("select_copy.int", (x, 1, -1)),
        ("slice_copy.Tensor", (x, 1, 1, 9, 2)),
        ("split_copy.Tensor", (x, 3, 1)),
        ("squeeze_copy.dims", (r(1, 3, 1), [0, 2])),
        ("special_xlog1py.other_scalar", (x, 2)),
        ("special_xlog1py.self_scalar", (0, x.abs())),
        ("xlogy.Scalar_Other", (x, 2)),
        ("xlogy.Scalar_Self", (2, x.abs())),
        ("square", (n(4),)),
        ("to.dtype", (x, torch.int64)),
        ("view.dtype", (x, torch.int32)),
        ("where.Scalar", (mask, 1.0, 2.0)),
        ("where.ScalarOther", (mask, x, 2.0)),
        ("where.ScalarSelf", (mask, 2.0, x)),
        *((f"{kind}{d}d.vec", (t, None, [1.7] * d))
          for kind in ("upsample_nearest", "_upsample_nearest_exact")
          for d, t in ((1, line), (2, image), (3, volume))),
        *((f"upsample_{kind}.vec", (t, None, align, [1.7] * d))
          for kind, d, t in (("linear1d", 1, line), ("bilinear2d", 2, image),
                             ("trilinear3d", 3, volume), ("bicubic2d", 2, image))
          for align in (True, False)),
        ("_upsample_nearest_exact3d", (volume, [3, 7, 9])),
        ("_upsample_nearest_exact3d_backward", (r(1, 2, 3, 7, 9), [3, 7, 9], [1, 2, 4, 5, 6])),
        ("trnx::quick_gelu", (x,)),
        ("trnx::quick_gelu", (x.bfloat16(),)),
        ("trnx::rms_norm", (x, r(4), 1e-6)),
        ("trnx::rms_norm", (x.bfloat16(), None, 1e-6)),
        ("trnx::rms_norm", (x.bfloat16(), r(4), 1e-6, 1.0)),
        ("trnx::rms_norm", (x.bfloat16(), r(4).bfloat16(), 1e-6, 0.0, True)),
        *(("trnx::cross_entropy", (x, labels, how, 1)) for how in (0, 1, 2)),
        *(("trnx::cross_entropy_backward",
           (loss, x, labels, *saved, how, 1))
          for how in (0, 1, 2)
          for loss, *saved in [torch.ops.trnx.cross_entropy(x, labels, how, 1)]),
        *(("trnx::sdpa", (q, k, v, m, None, 0.0, causal, 0.3))
          for m, causal in ((None, True), (r(5, 6) > 0, False), (r(2, 1, 5, 6), False))),
        ("trnx::sdpa", (q, k, v, None, r(2, 4, 5, 6) > 0, 0.5, False, 0.3)),
        *(("trnx::sdpa_backward",
           (r(2, 4, 5, 8), q, k, v, *torch.ops.trnx.sdpa(q, k, v, m, None, 0.0, False, 0.3),
            m, None, 0.0, False, 0.3, m is not None))
          for m in (None, r(1, 1, 5, 6))),
    ]  # fmt: skip
    return [(c[0], (c[1], c[2] if len(c) > 2 else {})) for c in calls]


NOT_CALLED = {"sym_size.int", "sym_numel"}  # sizes, which make no tensor: see the symbolic tests


def recorded(limit: int) -> dict[Any, list[Call]]:
    """Recorded calls and those by hand."""
    found = record(set(TABLE), limit)
    for name, call in _by_hand():
        found.setdefault(overload(name), []).append(call)
    return found


def test_the_table_is_broad() -> None:
    assert len(TABLE) >= 250


def _sweep(calls: dict[Any, list[Call]]) -> tuple[list[str], set[Any]]:
    """What differs from eager, and the ops that ran."""
    work = [(op, call) for op in sorted(calls, key=str) for call in calls[op]]
    wrong: list[str] = []
    taken: set[Any] = set()
    for start in range(0, len(work), BATCH):
        found, ran = compare(work[start : start + BATCH])
        wrong += found
        taken |= ran
    return wrong, taken


@pytest.mark.parametrize("limit", [QUICK, pytest.param(THOROUGH, marks=pytest.mark.slow)])
def test_every_entry_agrees_with_eager(limit: int) -> None:
    wrong, taken = _sweep(recorded(limit))
    assert not wrong, "\n".join(wrong)
    untried = set(TABLE) - taken - {overload(name) for name in NOT_CALLED}
    assert not untried, f"no sample runs {sorted(map(str, untried))}"


def test_two_entries_for_one_op_raise() -> None:
    with pytest.raises(DuplicateOpError, match=r"aten\.add\.Tensor"):
        register("add.Tensor")(lambda x, y: x + y)
