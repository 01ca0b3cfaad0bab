"""The operators: what `nl.add`, `nl.exp`, `nl.gelu`... are, wherever they are passed or called.

One `Operator` holds all that is known of one: its function on tiles and as an operator of
instructions, ScalarE's function of that name, the forms for scans and reductions. The table follows
"Supported Math Operators for NKI ISA" and "Supported Activation Functions"
(SDK/nki/api/nki.api.shared.rst). Hardware approximates activation functions by piece-wise
polynomials; here they are as exact as torch or, where that is several times faster (exp, log,
tanh), numpy. Beyond the documented ranges results on hardware are invalid, but for `sin`:
`nisa.activation` does not reduce the range (sin(9.0) = 27.65), `nl.sin` of a tile is numpy's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trnx.simulator.language.operators import functions, reductions
from trnx.simulator.language.operators.functions import Function
from trnx.simulator.language.operators.reductions import Reduction


class Token:
    """What kernels pass for an operator; it never changes."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator of `arity` 1 or 2.

    `function(a[, b], out=out)` computes on float32 tiles, of bitvec operators on signed integers;
    `not_on_tiles` where instructions alone take it. `is_alu`: VectorE and GpSimd have it.
    `activation` is ScalarE's function of that name. `ufunc` is numpy's form: of the ALU's function
    in scans, else of the activation. `reduction` folds the last dimension, from `identity`.
    `is_exact`: results are 0 or 1. `is_integer`: exact on 32-bit integers where an instruction asks
    for that. `generation` is the first that has it.
    """

    name: str
    arity: int = 2
    function: Function = functions.not_on_tiles
    is_alu: bool = False
    is_bitvec: bool = False
    is_exact: bool = False
    is_integer: bool = False
    identity: float | None = None
    generation: int = 2
    activation: Function | None = None
    ufunc: np.ufunc | None = None
    reduction: Reduction | None = None
    aliases: tuple[str, ...] = ()

    @functools.cached_property
    def is_unary(self) -> bool:
        """True where it takes one operand."""
        return self.arity == 1

    @property
    def is_on_tiles(self) -> bool:
        """True where nki.language has it as a function of tiles."""
        return self.function is not functions.not_on_tiles

    def reduce(self) -> Reduction:
        """Its reduction, which it has."""
        assert self.reduction is not None, self.name
        return self.reduction

    def arguments(self, a: Any, b: Any, reverse: bool) -> tuple[Any, ...]:
        """Positional arguments of `function` for `a <op> b`, or `b <op> a` when reversed."""
        if self.is_unary:
            return (a,)
        return (b, a) if reverse else (a, b)


# Every operator by name; and also by the names under which numpy or nki.language's reductions know
# it.
OPERATORS: dict[str, Operator] = {}
_BY_ANY_NAME: dict[str, Operator] = {}


def declare(operator: Operator) -> None:
    """Add an operator: `nl.<name>` from the next kernel on. Raises ValueError for a second one of
    its name.
    """
    for name in (operator.name, *operator.aliases):
        if name in _BY_ANY_NAME:
            raise ValueError(f"two operators are named {name!r}")
    OPERATORS[operator.name] = operator
    _BY_ANY_NAME.update(dict.fromkeys((operator.name, *operator.aliases), operator))


def forget(operator: Operator) -> None:
    """Undo `declare`."""
    del OPERATORS[operator.name]
    for name in (operator.name, *operator.aliases):
        del _BY_ANY_NAME[name]


def find(name: str) -> Operator | None:
    """The operator of a name or alias."""
    return _BY_ANY_NAME.get(name)


def _alu(name: str, function: Function, **facts: Any) -> None:
    declare(Operator(name, function=function, is_alu=True, **facts))


def _compare(name: str, function: Function, ufunc: np.ufunc) -> None:
    _alu(name, function, is_exact=True, is_integer=True, ufunc=ufunc)


def _logical(
    name: str, function: Function, ufunc: np.ufunc, reduction: Reduction, identity: float
) -> None:
    _alu(
        name,
        function,
        is_exact=True,
        is_integer=True,
        identity=identity,
        ufunc=ufunc,
        reduction=reduction,
    )


def _bitvec(name: str, function: Function, **facts: Any) -> None:
    _alu(name, function, is_bitvec=True, **facts)


def _unary(name: str, function: Function, **facts: Any) -> None:
    """Of the ALU and of ScalarE."""
    _alu(name, function, arity=1, activation=function, **facts)


def _activation(name: str, function: Function, ufunc: np.ufunc | None = None) -> None:
    """Of ScalarE alone."""
    declare(Operator(name, 1, function, activation=function, ufunc=ufunc))


def _on_tiles(name: str, function: Function, arity: int = 1) -> None:
    """A function of nki.language that no instruction has as an operator."""
    declare(Operator(name, arity, function))


_INFINITY = float("inf")
_aten = torch.ops.aten
_add, _multiply = reductions.sum_last, reductions.product_last
_max, _min = reductions.max_last, reductions.min_last
_fold = reductions.fold_last

_alu("add", torch.add, is_integer=True, identity=0.0, ufunc=np.add, reduction=_add,
     aliases=("sum",))  # fmt: skip
_alu("subtract", torch.sub, is_integer=True, identity=0.0, ufunc=np.subtract,
     reduction=reductions.subtract_last)  # fmt: skip
_alu("multiply", torch.mul, is_integer=True, identity=1.0, ufunc=np.multiply, reduction=_multiply,
     aliases=("prod",))  # fmt: skip
_alu("maximum", torch.maximum, is_integer=True, identity=-_INFINITY, ufunc=np.maximum,
     reduction=_max, aliases=("max",))  # fmt: skip
_alu("minimum", torch.minimum, is_integer=True, identity=_INFINITY, ufunc=np.minimum,
     reduction=_min, aliases=("min",))  # fmt: skip
_compare("equal", torch.eq, np.equal)
_compare("not_equal", torch.ne, np.not_equal)
_compare("greater_equal", torch.ge, np.greater_equal)
_compare("greater", torch.gt, np.greater)
_compare("less_equal", torch.le, np.less_equal)
_compare("less", torch.lt, np.less)
_logical("logical_and", torch.logical_and, np.logical_and, reductions.all_last, 1.0)
_logical("logical_or", torch.logical_or, np.logical_or, reductions.any_last, 0.0)
_logical("logical_xor", torch.logical_xor, np.logical_xor, reductions.parity_last, 0.0)
_alu("power", torch.pow, ufunc=np.power, aliases=("pow",))
_alu("abs_max", functions.abs_max, identity=0.0, generation=4, reduction=reductions.abs_max_last)
_alu("abs_min", functions.abs_min, identity=_INFINITY, generation=4,
     reduction=reductions.abs_min_last)  # fmt: skip
_bitvec("invert", torch.bitwise_not, arity=1, aliases=("bitwise_not", "bitwise_invert"))
_bitvec("bitwise_and", torch.bitwise_and, identity=-1.0, reduction=_fold(torch.bitwise_and))
_bitvec("bitwise_or", torch.bitwise_or, identity=0.0, reduction=_fold(torch.bitwise_or))
_bitvec("bitwise_xor", torch.bitwise_xor, identity=0.0, reduction=_fold(torch.bitwise_xor))
_bitvec("left_shift", functions.left_shift, aliases=("bitwise_left_shift",))
_bitvec("right_shift", functions.logical_right_shift, aliases=("bitwise_right_shift",))

_unary("abs", torch.abs, aliases=("absolute",))
_unary("square", torch.square)
_unary("relu", functions.relu)
_unary("rsqrt", torch.rsqrt)
_unary("reciprocal", torch.reciprocal)

# Errors of numpy's vectorised forms are up to 3 units in the last place, of torch's 1.
_activation("exp", torch.exp, np.exp)
_activation("log", torch.log, np.log)
_activation("tanh", torch.tanh, np.tanh)
_activation("sqrt", torch.sqrt)
_activation("sigmoid", torch.sigmoid)
_activation("gelu", functions.gelu)
_activation("gelu_dx", functions.gelu_dx)
_activation("gelu_apprx_tanh", functions.gelu_tanh)
_activation("gelu_apprx_sigmoid", functions.gelu_sigmoid)
_activation("gelu_apprx_sigmoid_dx", functions.gelu_sigmoid_dx)
_activation("silu", _aten.silu.out)
_activation("silu_dx", functions.silu_dx)
_activation("softplus", _aten.softplus.out)
_activation("mish", _aten.mish.out)
_activation("erf", torch.erf)
_activation("erf_dx", functions.erf_dx)
_activation("arctan", torch.arctan)
_activation("sign", torch.sign)
declare(Operator("sin", 1, torch.sin, activation=functions.sin_of_scalar_engine))
declare(Operator("copy", 1, activation=functions.copy, aliases=("identity",)))
declare(Operator("prelu", 1, activation=functions.prelu(0.0)))

_on_tiles("cos", torch.cos)
_on_tiles("tan", torch.tan)
_on_tiles("ceil", torch.ceil)
_on_tiles("floor", torch.floor)
_on_tiles("trunc", torch.trunc)
_on_tiles("negative", torch.neg)
_on_tiles("logical_not", functions.logical_not)
_on_tiles("divide", torch.div, arity=2)
_on_tiles("fmod", torch.fmod, arity=2)
_on_tiles("mod", torch.remainder, arity=2)

# Arguments of single instructions.
declare(Operator("average", 1))
declare(Operator("bypass"))
