"""GELU written out: `aten.gelu` in its tanh form, `trnx::quick_gelu` for x * sigmoid(1.702 x),
whatever the order of the factors and however the cube is written.

The argument of tanh or sigmoid is compared as a polynomial in x, the result as one in x and
that function. Only where nothing else reads a value in between (a backward pass that saved it
does). In half precision the one op rounds once where the ops that it stands for round up to eight
times: its error against float64 is smaller than eager's, never larger. In float32 it is at most
twice that. Float64 stays, because models write the constants in ten digits.

The form with erf stays too: torch's own gelu is six times as far off as the formula in float32, and
NaN for infinity in every dtype, where the formula is infinite.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.metadata import EXAMPLE_VALUE, VAL, call_if_same, erase_unused
from trnx.fx_passes.nodes import arguments, aten
from trnx.fx_passes.symbolic import same_numbers
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops

# (power of x, power of the function) -> coefficient
_Polynomial = dict[tuple[int, int], float]

_TANH = math.sqrt(2.0 / math.pi)
_HALF_OF_BOTH: _Polynomial = {(1, 0): 0.5, (1, 1): 0.5}


@dataclass(frozen=True)
class Form:
    """A spelling: the function's argument, the result, and the op that it is."""

    argument: Mapping[tuple[int, int], float]
    result: Mapping[tuple[int, int], float]
    target: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)


_FORMS: Mapping[str, Form] = {
    "tanh": Form(
        {(1, 0): _TANH, (3, 0): _TANH * 0.044715},
        _HALF_OF_BOTH,
        aten.gelu.default,
        {"approximate": "tanh"},
    ),
    "sigmoid": Form({(1, 0): 1.702}, {(1, 1): 1.0}, torch.ops.trnx.quick_gelu.default),
}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ATEN: Mapping[Any, str] = {
    aten.add.Tensor: "add",
    aten.sub.Tensor: "sub",
    aten.mul.Tensor: "mul",
    aten.div.Tensor: "div",
    aten.neg.default: "neg",
    aten.pow.Tensor_Scalar: "pow",
}
_PYTHON: Mapping[Any, str] = {
    **{getattr(module, name): name for module in (operator, torch)
       for name in ("add", "sub", "mul", "neg", "pow")},
    operator.truediv: "div",
    torch.div: "div",
}  # fmt: skip


@dataclass(frozen=True)
class Dialect:
    """What a graph is written in: its arithmetic and the functions of the forms, by target, and the
    key of fake values."""

    arithmetic: Mapping[Any, str]
    functions: Mapping[Any, str]
    key: str

    def form(self, node: fx.Node) -> Form | None:
        """The form that a function may be a part of, for its dtype."""
        name = self.functions.get(node.target) if node.op == "call_function" else None
        value = self.value(node)
        if name is None or value is None:
            return None
        return _FORMS[name] if value.dtype in _DTYPES else None

    def value(self, node: Any) -> torch.Tensor | None:
        """The fake tensor of a node."""
        value = node.meta.get(self.key) if isinstance(node, fx.Node) else None
        return value if isinstance(value, torch.Tensor) else None

    def is_arithmetic(self, node: Any, x: fx.Node) -> bool:
        """True for arithmetic on values of the shape and dtype of `x`."""
        value, of_x = self.value(node), self.value(x)
        if value is None or of_x is None or node.target not in self.arithmetic or node.kwargs:
            return False
        return value.dtype == of_x.dtype and same_numbers(value.shape, of_x.shape)


# After AOTAutograd, and Dynamo's.
ATEN = Dialect(
    _ATEN,
    {aten.tanh.default: "tanh", aten.sigmoid.default: "sigmoid"},
    VAL,
)
PYTHON = Dialect(
    _PYTHON,
    {torch.tanh: "tanh", torch.sigmoid: "sigmoid"},
    EXAMPLE_VALUE,
)
# Of the longest spelling: no polynomial of a GELU has more nodes, a higher degree, or more ops
# between the function and the result.
_MOST_NODES, _MOST_DEGREE, _MOST_STEPS = 12, 4, 4
# Half of float32's unit in the last place is 6e-8.
_TOLERANCE = 1e-8


class _Expansion:
    """Nodes as polynomials in `x` and `function`; `inside` are the nodes that were expanded."""

    def __init__(self, dialect: Dialect, x: fx.Node, function: fx.Node) -> None:
        self._dialect = dialect
        self._leaves = {function: (0, 1), x: (1, 0)}
        self._x = x
        self.inside: set[fx.Node] = {function}

    def of(self, value: Any) -> _Polynomial | None:
        """`value` as a polynomial, or None."""
        if isinstance(value, int | float):
            return {(0, 0): float(value)}
        if value in self._leaves:
            return {self._leaves[value]: 1.0}
        if not self._dialect.is_arithmetic(value, self._x) or len(self.inside) > _MOST_NODES:
            return None
        self.inside.add(value)
        return self._call(self._dialect.arithmetic[value.target], arguments(value))

    def _call(self, name: str, args: tuple[Any, ...]) -> _Polynomial | None:
        first = self.of(args[0])
        if first is None:
            return None
        if name == "neg":
            return _product(first, {(0, 0): -1.0})
        if not isinstance(args[1], fx.Node | int | float):
            return None
        if name == "pow":
            return _power(first, args[1])
        second = self.of(args[1])
        if second is None:
            return None
        if name == "mul":
            return _product(first, second)
        if name == "div":
            divisor = second.get((0, 0), 0.0)
            known = divisor != 0.0 and len(second) == 1
            return _product(first, {(0, 0): 1.0 / divisor}) if known else None
        return _sum(first, second, -1.0 if name == "sub" else 1.0)


def _sum(a: _Polynomial, b: _Polynomial, sign: float) -> _Polynomial:
    return {key: a.get(key, 0.0) + sign * b.get(key, 0.0) for key in a | b}


def _product(a: _Polynomial, b: _Polynomial) -> _Polynomial | None:
    result: _Polynomial = {}
    for (i, j), left in a.items():
        for (k, m), right in b.items():
            if i + k + j + m > _MOST_DEGREE:
                return None
            result[i + k, j + m] = result.get((i + k, j + m), 0.0) + left * right
    return result


def _power(base: _Polynomial, exponent: Any) -> _Polynomial | None:
    if exponent not in (1, 2, 3):
        return None
    result: _Polynomial | None = {(0, 0): 1.0}
    for _ in range(int(exponent)):
        result = None if result is None else _product(result, base)
    return result


def _equal(a: _Polynomial | None, b: Mapping[tuple[int, int], float]) -> bool:
    if a is None:
        return False
    return all(math.isclose(a.get(k, 0.0), b.get(k, 0.0), rel_tol=_TOLERANCE) for k in {**a, **b})


def _candidates(dialect: Dialect, function: fx.Node) -> Iterator[fx.Node]:
    """What x may be: the values that the argument is computed from by arithmetic, nearest first."""
    queue = [n for n in function.all_input_nodes if dialect.value(n) is not None]
    seen = dict.fromkeys(queue)
    while queue and len(seen) <= 2 * _MOST_NODES:
        node = queue.pop(0)
        yield node
        if node.target in dialect.arithmetic:
            new = [
                n for n in node.all_input_nodes if n not in seen and dialect.value(n) is not None
            ]
            seen |= dict.fromkeys(new)
            queue += new


@dataclass(frozen=True)
class Gelu:
    """`root` is the GELU of `x`, `inside` are the nodes that compute it."""

    x: fx.Node
    root: fx.Node
    inside: frozenset[fx.Node]
    form: Form


def find_gelu(dialect: Dialect, function: fx.Node) -> Gelu | None:
    """The GELU that a function is a part of, where all in between is its own."""
    form = dialect.form(function)
    if form is None:
        return None
    for x in _candidates(dialect, function):
        found = _gelu_of(dialect, function, x, form)
        if found is not None:
            return found
    return None


def _gelu_of(dialect: Dialect, function: fx.Node, x: fx.Node, form: Form) -> Gelu | None:
    expansion = _Expansion(dialect, x, function)
    if not _equal(expansion.of(function.args[0]), form.argument):
        return None
    root = function
    for _ in range(_MOST_STEPS):
        if len(root.users) != 1:
            return None
        root = next(iter(root.users))
        result = expansion.of(root)
        if _equal(result, form.result):
            inner = expansion.inside - {root}
            if all(u in expansion.inside for n in inner for u in n.users):
                return Gelu(x, root, frozenset(expansion.inside), form)
            return None
    return None


def name_gelu(dialect: Dialect, found: Gelu) -> None:
    """Put the op in the place of the whole; the function itself is dead then."""
    form, root = found.form, found.root
    new = call_if_same(root, form.target, (found.x,), dict(form.kwargs), key=dialect.key)
    if new is not None:
        root.replace_all_uses_with(new)
        erase_unused(root)
