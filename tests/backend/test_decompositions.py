"""Decompositions give results in eager's layouts, whatever the order of operands' dimensions is."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from suites.opinfo_samples import samples_of
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from trnx.backend.decompositions import ROW_MAJOR, decomposition_table
from trnx.nki_kernels.registry import kernels

aten = torch.ops.aten
SAMPLES = 4
# Ops whose results have once had other strides, and some of each kind; --slow takes all.
QUICK = (
    r"add(mm|bmm|mv|cmul|r)|baddbmm|softmax|var_mean|round|bucketize|searchsorted|c?dist|median|"
    r"(narrow|permute|view|as_strided|unbind)_copy|index_(add|fill)|take|put|arg(max|min)|"
    r"grid_sampler_2d|logsumexp|std|var|lerp|where|stack|tril|rot90|"
    r"nn\.functional\.(logsigmoid|upsample_nearest|interpolate|channel_shuffle|pixel_shuffle|gelu|glu|"
    r"softplus|hardswish|layer_norm|smooth_l1_loss|mse_loss|silu)"
)
# Of operands that are broadcast and not row-major; torch computes them by `where`, whose own
# operands have another order.
BROADCAST = {aten.heaviside.default, aten.logaddexp.default}


def turned(x: torch.Tensor) -> torch.Tensor:
    """The same values, with the first dimension innermost in memory."""
    if x.layout != torch.strided or x.ndim < 2:
        return x
    return x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim)))


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=torch.channels_last) if x.ndim == 4 else x


def layout(x: torch.Tensor) -> tuple[Any, ...]:
    steps = [step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1]
    return (x.dtype, x.shape, steps if x.numel() else [])


class Compared(TorchDispatchMode):
    """Runs each op that has a decomposition both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.table = decomposition_table(kernels())
        self.ran: set[Any] = set()
        self.wrong: list[str] = []

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = op(*args, **kwargs)
        if op in self.table and op not in BROADCAST and not op._schema.is_mutable:
            self.compare(op, args, kwargs, result)
        return result

    def compare(self, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        try:
            decomposed = self.table[op](*args, **kwargs)
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            return  # kept as it is for such arguments
        if decomposed is NotImplemented:
            return
        self.ran.add(op)
        for a, b in zip(tree_leaves(decomposed), tree_leaves(result), strict=False):
            if (
                isinstance(a, torch.Tensor)
                and isinstance(b, torch.Tensor)
                and layout(a) != layout(b)
            ):
                self.wrong.append(f"{op}: {layout(a)}, eager {layout(b)}")


def run_samples(
    names: str, change: Callable[[torch.Tensor], torch.Tensor], compared: Compared
) -> None:
    for op in op_db:
        chosen = re.fullmatch(names, op.name) and not op.name.startswith("jiterator")
        if chosen and torch.float32 in op.supported_dtypes("cpu"):
            for sample in _samples(op):
                changed = sample.transform(lambda v: tree_map_only(torch.Tensor, change, v))
                try:
                    with torch.no_grad(), compared:
                        op.op(changed.input, *changed.args, **changed.kwargs)
                except (RuntimeError, TypeError, ValueError, IndexError):
                    continue  # eager takes no such layout


def _samples(op: Any) -> Iterator[Any]:
    try:
        yield from islice(samples_of(op, torch.float32), SAMPLES)
    except RuntimeError:
        return  # the sample needs a library that torch was built without


@pytest.mark.parametrize(
    ("names", "least"), [(QUICK, 15), pytest.param(".*", 100, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("change", [turned, channels_last], ids=["turned", "channels_last"])
def test_layouts_are_those_of_eager(
    change: Callable[[torch.Tensor], torch.Tensor], names: str, least: int
) -> None:
    compared = Compared()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_samples(names, change, compared)
    assert len(compared.ran) >= least
    assert compared.wrong == []
    assert compared.ran >= ROW_MAJOR | {aten.channel_shuffle.default}


def test_the_gradient_of_dropout_keeps_the_order_of_dimensions() -> None:
    compared = Compared()
    x = turned(torch.rand(3, 4, 5))
    with compared:
        aten.native_dropout_backward.default(x, x > 0.5, 2.0)
    assert compared.ran == {aten.native_dropout_backward.default}
    assert compared.wrong == []


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.baddbmm(x[0], x[0], x[0]),
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    ],
    ids=["baddbmm", "batch_norm", "max_unpool2d"],
)
@pytest.mark.parametrize("change", [turned, channels_last], ids=["turned", "channels_last"])
def test_compiled_results_have_eagers_strides(
    change: Callable[[torch.Tensor], torch.Tensor], function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = change(torch.rand(2, 4, 6, 6))
    found = torch.compile(function, backend="trnx")(x)
    torch.testing.assert_close(found, function(x), check_stride=True)
