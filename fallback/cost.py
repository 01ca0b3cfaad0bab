"""Predicted seconds of a fallback region on the target: estimates of its work plus fixed costs.

On the device the NKI and the XLA regions of a graph are compiled into one executable, which is
launched once. An XLA region moves what enters and leaves it, and the operands and results of matrix
products and convolutions; its products are whole tiles, and its busiest engine decides, or the
chain of instructions that need each other (`simulator/timing/estimate` has the rates). An eager
region cuts that graph: it pays one more launch, a dispatch per op, and moves every operand through
HBM. Nothing is known of how AWS's compiler schedules a region, so the band of the calibrated model
does not hold for these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

import trnx.nki_kernels.canonical_ops  # noqa: F401  registers torch.ops.trnx
from trnx.fx_passes.flops import node_flops
from trnx.nki_kernels.hints import hint_int, product
from trnx.nki_kernels.spec import Cost
from trnx.simulator.hardware import Hardware
from trnx.simulator.timing.estimate import (
    chain_seconds,
    flops_seconds,
    hbm_seconds,
    product_seconds,
    rows_seconds,
    vector_seconds,
)

# Measured in the field on trn2: about 64 us for one eager op.
EAGER_OP_SECONDS = 64e-6
# A slice of a large model that AWS's compiler made takes 67.5 ms, its busiest engine (DMA) 58.3 ms
# of them (SDK/nki/deep-dives/nki_perf_guide.rst, figures 2 and 7; trn1, assumed for the others).
XLA_OVERLAP = 1.16

_aten, _trnx = torch.ops.aten, torch.ops.trnx

# Passes of VectorE over the rows, where an op takes more than one.
_PASSES: dict[Any, int] = {
    _aten.native_layer_norm.default: 8,
    _aten.native_group_norm.default: 8,
    _aten._softmax.default: 5,
    _aten._log_softmax.default: 5,
    _trnx.rms_norm.default: 4,
    _trnx.cross_entropy.default: 5,
    _trnx.cross_entropy_backward.default: 4,
    _aten.native_layer_norm_backward.default: 12,
    _aten._softmax_backward_data.default: 4,
    _aten._log_softmax_backward_data.default: 4,
    _aten.gelu_backward.default: 3,
}
# Passes of VectorE over the scores of attention, out of PSUM and back: mask, maximum, division,
# transposition (the exponentials are ScalarE's); backward has the product with the gradient and the
# difference besides. Heads are not packed into one tile (inferred).
_RESULT_PASSES: dict[Any, int] = {_trnx.sdpa.default: 4, _trnx.sdpa_backward.default: 6}

# Where the divisor stands among the arguments; None for the number of elements of a mean.
_DIVISORS: dict[Any, int | None] = {
    _aten.div.Tensor: 1,
    _aten.addcdiv.default: 2,
    _aten.mean.dim: None,
    _aten.mean.default: None,
}
# Instructions in a quotient that is rounded as in eager, by a tensor and by a number
# (nki_kernels/generator/division.py): who is compared with our kernels must give the same values.
# What AWS's compiler emits for a division is not published (inferred).
_DIVIDE_BY_TENSOR, _DIVIDE_BY_NUMBER = 26, 10
_DIVIDE_TOTAL = 6  # of a mean
# The same of scans: instructions that each element passes in a kernel with eager's values, by the
# scan and the type of what it takes (nki_kernels/kernels/cumsum.py and its neighbours).
_SCANS: dict[Any, dict[torch.dtype, int]] = {
    _aten.cumsum.default: {torch.float32: 10, torch.int64: 47, torch.int32: 27},
    _aten.cummax.default: dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), 9),
    _aten.cummin.default: dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), 9),
    _aten.logcumsumexp.default: dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), 9),
}

# The same of functions whose range engines do not take as it is (nki_kernels/generator/angles.py).
_RANGE_REDUCTIONS: dict[Any, int] = {
    _aten.sin.default: 38,
    _aten.cos.default: 38,
    _aten.atan.default: 8,
    _aten.asin.default: 11,
    _aten.acos.default: 13,
}

# Where pooling has the sizes of its window: along each dimension, an instruction for each position;
# a comparison and two selections where the places of maxima are read, or written to.
_WINDOWS: dict[Any, int] = {
    _aten.max_pool2d_with_indices.default: 1,
    _aten.max_pool3d_with_indices.default: 1,
    _aten.avg_pool2d.default: 1,
    _aten.avg_pool3d.default: 1,
    _aten.max_pool2d_with_indices_backward.default: 2,
    _aten.max_pool3d_with_indices_backward.default: 2,
}
_PLACED = 3

# Ops of one step, at least: a product, a bias or a sum, an activation, a copy to the result
# (nki_kernels/recurrent_ops.py); steps are the second dimension of the first operand.
_STEPPED: dict[Any, int] = {
    _trnx.recurrent.default: 4,
    _trnx.recurrent_backward.default: 4,
}

# Where a convolution has its groups, its input and its weight among the arguments.
_GROUPS: dict[Any, tuple[int, int, int]] = {
    _aten.convolution.default: (8, 0, 1),
    _aten.convolution_backward.default: (9, 1, 2),
}

_GATHERS = frozenset(
    {
        _aten.embedding.default,
        _aten.gather.default,
        _aten.index.Tensor,
        _aten.index_select.default,
    }
)

Shape = Sequence[int]
# Columns of one transposition on TensorE.
_TILE = 128
# (batch, rows, inner, columns) of a matrix product.
Product = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Busy:
    """Seconds of TensorE, of VectorE, and of dependent instructions one after another; addable."""

    tensor: float = 0.0
    vector: float = 0.0
    chain: float = 0.0

    def __add__(self, other: _Busy) -> _Busy:
        return _Busy(
            self.tensor + other.tensor, self.vector + other.vector, self.chain + other.chain
        )

    def with_traffic(self, seconds: float) -> float:
        """The slowest of all, HBM traffic included."""
        return max(self.tensor, self.vector, self.chain, seconds)


def leaves(value: Any) -> list[Any]:
    """What a node's metadata holds: itself, or the members of a (nested) sequence."""
    if isinstance(value, (tuple, list)):
        return [leaf for member in value for leaf in leaves(member)]
    return [value]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(hint_int(size) for size in value.meta["val"].shape)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(product(t.shape) * t.element_size() for t in tensors)


def _elements(tensors: Iterable[torch.Tensor]) -> int:
    return sum(product(t.shape) for t in tensors)


def _linear(x: Shape, weight: Shape, *_: Any) -> list[Product]:
    return [(1, math.prod(x[:-1]), x[-1], weight[0])]


def _matmul(a: Shape, b: Shape, *_: Any) -> list[Product]:
    return [(math.prod(a[:-2]), a[-2], a[-1], b[-1])]


def _attention(q: Shape, k: Shape, v: Shape, *_: Any) -> list[Product]:
    """Scores, their product with v, and the transpositions of q, k and the weights."""
    batch, rows, columns = math.prod(q[:-2]), q[-2], k[-2]
    turned = [(rows, q[-1]), (columns, q[-1]), (rows, columns)]
    return [
        (batch, rows, q[-1], columns),
        (batch, rows, columns, v[-1]),
        *((batch, height, width, _TILE) for height, width in turned),
    ]


def _attention_backward(_: Shape, q: Shape, k: Shape, v: Shape, *__: Any) -> list[Product]:
    scores, values, *turned = _attention(q, k, v)
    return [scores, scores, scores, values, values, *turned]


_PRODUCTS: dict[Any, Callable[..., list[Product]]] = {
    _aten.linear.default: _linear,
    _aten.mm.default: _matmul,
    _aten.bmm.default: _matmul,
    _trnx.sdpa.default: _attention,
    _trnx.sdpa_backward.default: _attention_backward,
}


def _read(node: fx.Node) -> list[torch.Tensor]:
    """What a node reads of its operands: a gather reads as much of its first as it returns."""
    inputs = [t for n in node.all_input_nodes for t in _tensors(n.meta.get("val"))]
    return [*_tensors(node.meta.get("val")), *inputs[1:]] if node.target in _GATHERS else inputs


def node_cost(node: fx.Node) -> Cost:
    """Work of one node run on its own: every operand and result crosses HBM once."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return Cost()
    outputs = _tensors(node.meta.get("val"))
    inputs = _read(node)
    matmul = node_flops(node)
    vector = 0 if matmul else max(_elements(outputs), _elements(inputs))
    return Cost(matmul, vector, _bytes(inputs) + _bytes(outputs))


def _dtype(node: fx.Node) -> torch.dtype:
    """What a node computes in: the widest floating point type of its results, else float32."""
    kinds = [t.dtype for t in _tensors(node.meta.get("val")) if t.dtype.is_floating_point]
    return max(kinds, key=lambda kind: kind.itemsize, default=torch.float32)


def _busy(node: fx.Node, cost: Cost, hw: Hardware) -> _Busy:
    if cost == Cost():
        return _Busy()
    dtype = _dtype(node)
    formula = _PRODUCTS.get(node.target)
    if formula is not None:
        shapes = [_shape(a) for a in node.args if isinstance(a, fx.Node) and _has_shape(a)]
        return _products_busy(node, formula(*shapes), dtype, hw)
    if node.target is _aten.convolution.default:
        return _products_busy(node, [_convolution(node)], dtype, hw)
    (*outer, columns) = _rows(node)
    passes = _PASSES.get(node.target)
    if passes is not None:
        rows = rows_seconds(hw, 1, math.prod(outer), columns, dtype)
        return _Busy(0.0, passes * rows, chain_seconds(hw, passes, columns))
    flops = flops_seconds(hw, cost.matmul_flops * _groups_in_a_product(node), dtype)
    elements = math.prod((*outer, columns))
    steps = _scan_steps(node) + _window_steps(node) + _RANGE_REDUCTIONS.get(node.target, 1) - 1
    steps += 0 if dtype is torch.bfloat16 else _division_steps(node)
    vector = vector_seconds(hw, cost.vector_flops + steps * elements, dtype)
    return _Busy(flops, vector, chain_seconds(hw, 1 + steps, math.ceil(elements / hw.partitions)))


def _rows(node: fx.Node) -> Shape:
    """The first result's shape, whose last dimension runs along a row: of a group, for its norm."""
    shapes = [tuple(map(hint_int, t.shape)) for t in _tensors(node.meta.get("val"))]
    first = (shapes and shapes[0]) or (1,)
    if node.target is _aten.native_group_norm.default:
        rows = first[0] * _number(node.args[6])
        return (rows, math.prod(first) // max(1, rows))
    return first


def _convolution(node: fx.Node) -> Product:
    """The product of the weight with what the kernel's positions see, groups that share one with
    zeros between them; of a transposed one, with the image, whose results are added up.
    """
    image, weight = _shape(node.args[0]), _shape(node.args[1])
    (_, _, *result), positions = _shape(node), math.prod(weight[2:])
    groups, together = _number(node.args[8]), _groups_in_a_product(node)
    batch = math.ceil(groups / together)
    if node.args[6]:
        inner, columns = weight[0] // groups, weight[1] * positions
        return batch, image[0] * math.prod(image[2:]), together * inner, together * columns
    inner, columns = weight[1] * positions, weight[0] // groups
    return batch, image[0] * math.prod(result), together * inner, together * columns


def _number(argument: Any) -> int:
    """The hint of a number, which a node may stand for."""
    return hint_int(argument.meta["val"] if isinstance(argument, fx.Node) else argument)


def _groups_in_a_product(node: fx.Node) -> int:
    """Groups of a convolution that share a product, each with zeros beside its channels: TensorE
    takes as long for one group of few channels.
    """
    place = _GROUPS.get(node.target)
    if place is None:
        return 1
    groups, image, weight = node.args[place[0]], node.args[place[1]], node.args[place[2]]
    if not (isinstance(groups, int) and isinstance(image, fx.Node) and isinstance(weight, fx.Node)):
        return 1
    # A weight has the channels of all groups on one side, and of one group on the other.
    inside, outside = _shape(image)[1] // groups, max(_shape(weight)[:2]) // groups
    return min(groups, max(1, _TILE // max(1, inside, outside)))


def _scan_steps(node: fx.Node) -> int:
    """Instructions of a scan besides the first."""
    counts = _SCANS.get(node.target)
    if counts is None:
        return 0
    (scanned,) = _tensors(node.all_input_nodes[0].meta.get("val"))
    return counts.get(scanned.dtype, 1) - 1


def _window_steps(node: fx.Node) -> int:
    """Instructions of pooling besides the first, for windows reduced dimension by dimension."""
    place = _WINDOWS.get(node.target)
    if place is None:
        return 0
    sizes: Any = node.args[place]
    is_placed = place == 2 or any(user.args[1:] == (1,) for user in node.users)
    return max(0, sum(map(hint_int, sizes)) * (_PLACED if is_placed else 1) - 1)


def _division_steps(node: fx.Node) -> int:
    """Instructions of a division besides the first."""
    if node.target not in _DIVISORS:
        return 0
    place = _DIVISORS[node.target]
    divisor = None if place is None else node.args[place]
    if isinstance(divisor, fx.Node):
        return _DIVIDE_BY_TENSOR - 1
    # The product with the reciprocal of a power of two is the quotient.
    exact = isinstance(divisor, (int, float)) and abs(math.frexp(divisor)[0]) == 0.5
    steps = _DIVIDE_TOTAL if place is None else _DIVIDE_BY_NUMBER
    return 0 if exact else steps - 1


def _products_busy(
    node: fx.Node, products: Sequence[Product], dtype: torch.dtype, hw: Hardware
) -> _Busy:
    """Products, and what VectorE does with their results in PSUM."""
    busy = _Busy(sum(product_seconds(hw, *product, dtype) for product in products))
    passes = _RESULT_PASSES.get(node.target, 1)
    batch, rows, _, columns = products[0]
    vector = passes * rows_seconds(hw, batch, rows, columns, torch.float32)
    # An operand is transposed and copied out of PSUM before it can be multiplied.
    chain = chain_seconds(hw, passes + 1, columns, products=len(products) + 1)
    return busy + _Busy(0.0, vector, chain)


def _has_shape(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def eager_seconds(nodes: Sequence[fx.Node], hw: Hardware) -> float:
    """The launch of the graph's second half; a dispatch and a pass over HBM for each op."""
    total = hw.launch_seconds if nodes else 0.0
    for node in nodes:
        cost = node_cost(node)
        if cost != Cost():
            busy = _busy(node, cost, hw)
            dispatches = EAGER_OP_SECONDS * _eager_ops(node)
            total += max(dispatches, busy.with_traffic(hbm_seconds(hw, cost.hbm_bytes)))
    return total


def _eager_ops(node: fx.Node) -> int:
    """How many ops eager runs for the node: those of every step for a recurrent layer."""
    if node.target not in _STEPPED:
        return 1
    gates: Any = node.all_input_nodes[0].meta["val"]
    return _STEPPED[node.target] * hint_int(gates.shape[1])


def fused_seconds(nodes: Sequence[fx.Node], hw: Hardware) -> float:
    """HBM sees what enters and leaves the region, and products."""
    inside = set(nodes)
    busy = _Busy()
    crossing: dict[fx.Node, None] = {}
    gathered = 0
    for node in nodes:
        cost = node_cost(node)
        busy += _busy(node, cost, hw)
        if node.target in _GATHERS:
            gathered += _bytes(_read(node))
        else:
            crossing.update((n, None) for n in node.all_input_nodes if n not in inside)
        if cost.matmul_flops or any(user not in inside for user in node.users):
            crossing[node] = None
    moved = gathered + _bytes(t for n in crossing for t in _tensors(n.meta.get("val")))
    return hw.region_seconds + XLA_OVERLAP * busy.with_traffic(hbm_seconds(hw, moved))
