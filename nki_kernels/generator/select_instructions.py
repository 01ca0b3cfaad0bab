"""From the IR to a list of NKI instructions for one tile.

Two scalar operators become one `tensor_scalar`, a scalar operator before a binary one becomes
`scalar_tensor_tensor`, scale and bias go into `activation`, and so does the sum of what an
activation gives. A value whose only use is a cast is written in the cast's dtype at once. All of
this is exact: the engines compute in float32 and round once, on writing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from trnx.nki_kernels.generator.geometry import Geometry
from trnx.nki_kernels.generator.instruction import (
    EACH_TILE,
    Argument,
    Instruction,
    Tile,
    literal,
)
from trnx.nki_kernels.generator.ir import Number, Operand, Value, values_of
from trnx.nki_kernels.generator.lower import reachable
from trnx.nki_kernels.generator.reciprocals import FEW, MANY, is_from_one

_HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class _Scalar:
    """`data <op> operand`, the form that `tensor_scalar` takes."""

    data: Value
    op: str
    operand: Operand | None
    reverse: bool


def _stored(number: Number, dtype: torch.dtype) -> Number:
    """A number as tiles of `dtype` hold it: too large ones are infinite."""
    if not dtype.is_floating_point:
        return int(number)
    if abs(number) > torch.finfo(dtype).max:
        return torch.tensor(number, dtype=torch.float64).to(dtype).item()
    return float(number)


class InstructionSelector:
    """Selects the instructions of one region for one geometry; `run` gives them in order.
    `sums_in_activations`: activations add up what they give where all of a partition is added.
    `in_one_phase`: a sum of exp(x - max(x)) does not wait for the maximum of all tiles, but takes
    that of each, and the sums of tiles are scaled when they are added up."""

    def __init__(
        self,
        roots: tuple[Value, ...],
        geometry: Geometry,
        *,
        scalar_bias: bool,
        sums_in_activations: bool = True,
        in_one_phase: bool = False,
    ) -> None:
        self._roots = roots
        self._geometry = geometry
        self._scalar_bias = scalar_bias
        self._values = values = reachable(roots)
        self._cast_sources = {v.args[0] for v in values if v.op == "cast"}
        self._shift_sources = {v.args[0] for v in values if v.op == "bitwise"}
        self._uses: Counter[Value] = Counter(roots)
        for value in values:
            self._uses.update(values_of(value.args))
        summed = [v for v in values if v.op == "reduce" and self._is_activation_sum(v)]
        self._sums = {v.args[0]: v for v in summed if sums_in_activations}
        self._instructions: list[Instruction] = []
        self._done: dict[Value, Value] = {}
        # The maximum of each sum of exponentials that is computed in one phase, and of its tiles.
        self._extremes: dict[Value, Value] = {}
        self._most_of_tile: dict[Value, Value] = {}
        if in_one_phase and geometry.in_phases:
            sums = ((total, self._extreme_of(total)) for total in self._sums.values())
            self._extremes = {total: most for total, most in sums if most is not None}

    def run(self) -> tuple[list[Instruction], dict[Value, Value]]:
        """The instructions, and for every root the value whose tile holds it."""
        shifted = {values_of(values_of(total.args)[0].args)[0] for total in self._extremes}
        for value in self._values:  # operands first, so that visits do not nest deeply
            if not self._is_deferred(value) and value not in shifted:
                self._visit(value)
        held = {root: self._visit(root) for root in self._roots}
        return self._instructions, held

    def _is_deferred(self, value: Value) -> bool:
        """True where the instruction of the only user may compute the value too."""
        if value.op in ("word", "view"):
            return True
        if self._uses[value] != 1:
            return False
        if value.op == "bitwise" and value in self._shift_sources:
            return True
        return value in self._cast_sources or self._scalar_form(value) is not None

    # -- forms -----------------------------------------------------------------------------------

    def free_axes(self, value: Value) -> list[int]:
        """Labels of the free axes of the value's tile."""
        return [label for label in self._geometry.free_labels if label in value.axes]

    def _is_column(self, value: Value) -> bool:
        return not self.free_axes(value)

    def _same_tile(self, a: Value, b: Value) -> bool:
        return self.free_axes(a) == self.free_axes(b)

    def _is_activation_sum(self, value: Value) -> bool:
        source = value.args[0]
        return (
            value.name == "add"
            and isinstance(source, Value)
            and source.op == "unary"
            and self._is_column(value)
        )

    def _extreme_of(self, total: Value) -> Value | None:
        """max(x) where `total`, which an activation adds up, is the sum of exp(x - max(x)); in
        float32, in which eager does not round them."""
        (weights,) = values_of(total.args)
        (shifted,) = values_of(weights.args)
        if weights.name != "exp" or (shifted.op, shifted.name) != ("alu", "subtract"):
            return None
        x, most = shifted.args
        if not isinstance(x, Value) or not isinstance(most, Value):
            return None
        is_most = (most.op, most.name, most.args) == ("reduce", "maximum", (x,))
        alone = self._uses[shifted] == 1
        floats = all(v.dtype is torch.float32 for v in (x, most, shifted, weights, total))
        return most if is_most and alone and floats and self._is_column(most) else None

    def _scalar_form(self, value: Value) -> _Scalar | None:
        """`value` as a `tensor_scalar` operation, if it is one."""
        if value.op == "unary" and value.name == "abs":
            source = value.args[0]
            return _Scalar(source, "abs", None, False) if isinstance(source, Value) else None
        if value.op != "alu" or _is_exact(value):
            return None
        a, b = value.args
        if isinstance(a, Value) and self._is_operand(b, a):
            return _Scalar(a, value.name, b, False)
        if isinstance(b, Value) and self._is_operand(a, b):
            return _Scalar(b, value.name, a, True)
        return None

    def _is_operand(self, x: Operand, data: Value) -> bool:
        return not isinstance(x, Value) or (self._is_column(x) and not self._is_column(data))

    def _absorbable(self, value: Operand | None) -> _Scalar | None:
        """The form of a value that its only user may compute itself."""
        if not isinstance(value, Value) or value in self._done or self._uses[value] != 1:
            return None
        if value in self._sums:
            return None
        form = self._scalar_form(value)
        return form if form is not None and self._same_tile(form.data, value) else None

    # -- visiting --------------------------------------------------------------------------------

    def _visit(self, value: Value) -> Value:
        """Select the instructions of `value`; returns the value whose tile holds it."""
        if value not in self._done:
            self._done[value] = value
            getattr(self, f"_visit_{value.op}")(value)
        return self._done[value]

    def _put(
        self,
        call: str,
        dst: Value,
        arguments: Iterable[tuple[str, Argument]],
        result: Value | None = None,
        *,
        on_bits: bool = False,
        engine: str | None = None,
    ) -> None:
        self._instructions.append(Instruction(call, dst, tuple(arguments), result, on_bits, engine))

    def _full(self, x: Value, like: Value) -> Tile:
        if x.op == "word":
            return Tile(self._visit(_source(x)), like, x.attribute)
        if x.op == "view":
            return Tile(self._visit(_source(x)), like, seen_as=x.dtype)
        return Tile(self._visit(x), like)

    def _column(self, x: Operand) -> Argument:
        """A number, or a float32 tile with one value a partition."""
        if not isinstance(x, Value):
            return literal(x)
        held = self._visit(x)
        if held.dtype is not torch.float32:
            held = self._visit(Value("cast", "copy", (held,), torch.float32, held.axes))
        return Tile(held, None)

    def _visit_load(self, value: Value) -> None:
        self._put("load", value, ())

    def _visit_word(self, value: Value) -> None:
        """A tile of its own, for what needs one; others read the word where it was loaded."""
        self._put("tensor_copy", value, [("src", self._full(value, value))])

    _visit_view = _visit_word

    def _visit_pack(self, value: Value) -> None:
        for word, part in enumerate(values_of(value.args)):
            is_made = part.op not in ("word", "view")
            own = self._uses[part] == 1 and part.axes == value.axes and is_made
            if not own or self._visit(part) is not part:
                copy = Instruction("tensor_copy", value, (("src", self._full(part, value)),))
                self._instructions.append(replace(copy, word=word))
                continue
            for index, instruction in enumerate(self._instructions):
                if instruction.dst is part:
                    self._instructions[index] = replace(instruction, dst=value, word=word)

    def _visit_constant(self, value: Value) -> None:
        (number,) = value.args
        assert not isinstance(number, Value)
        self._put("memset", value, [("value", literal(_stored(number, value.dtype)))])

    def _visit_cast(self, value: Value) -> None:
        (source,) = value.args
        assert isinstance(source, Value)
        if self._writes_in(source, value):
            renamed = Value(
                source.op, source.name, source.args, value.dtype, source.axes, source.attribute
            )
            self._uses[renamed] = 1
            self._done[value] = self._visit(renamed)
            return
        self._put("tensor_copy", value, [("src", self._full(source, value))])

    def _writes_in(self, source: Value, cast: Value) -> bool:
        """True where the instruction that gives `source` may round to the cast's dtype itself."""
        return (
            source.op in ("alu", "unary", "reciprocal", "reduce")
            and source not in self._done
            and self._uses[source] == 1
            and source.dtype is torch.float32
            and cast.dtype.is_floating_point
            and source.axes == cast.axes
            and source not in self._sums
            and source not in self._sums.values()
        )

    def _visit_once(self, value: Value) -> None:
        """Changes the tile of its source, which nothing else reads."""
        (source,) = values_of(value.args)
        held = self._done[value] = self._visit(source)
        data = (("data", Tile(held, None)),)
        self._instructions.append(
            Instruction("affine_select", held, data, engine="gpsimd", overlap=value.attribute)
        )

    def _visit_alu(self, value: Value) -> None:
        form = self._scalar_form(value)
        if form is not None:
            self._put_scalar(value, form)
            return
        a, b = value.args
        assert isinstance(a, Value)
        assert isinstance(b, Value)
        if not _is_exact(value):
            for inner, other, reverse in ((a, b, False), (b, a, True)):
                absorbed = self._absorbable(inner)
                if absorbed is not None and absorbed.op != "abs" and self._same_tile(inner, value):
                    self._put_scalar_tensor(value, absorbed, other, reverse)
                    return
        data1, data2 = self._full(a, value), self._full(b, value)
        arguments: list[tuple[str, Argument]] = [("data1", data1), ("data2", data2)]
        arguments.append(("op", f"nl.{value.name}"))
        # GpSimd, which takes words by itself, computes in integers what is exact in float32.
        in_float32 = value.dtype is torch.int32 and not _is_exact(value)
        self._put("tensor_tensor", value, arguments, engine="vector" if in_float32 else None)

    def _put_scalar(self, value: Value, outer: _Scalar) -> None:
        inner = self._absorbable(outer.data)
        first = inner if inner is not None else outer
        arguments: list[tuple[str, Argument]] = [("data", self._full(first.data, value))]
        arguments += self._step(first, 0)
        if inner is not None:
            arguments += self._step(outer, 1)
        self._put("tensor_scalar", value, arguments)

    def _step(self, form: _Scalar, position: int) -> list[tuple[str, Argument]]:
        step: list[tuple[str, Argument]] = [(f"op{position}", f"nl.{form.op}")]
        operand = "0.0" if form.operand is None else self._column(form.operand)
        step.append((f"operand{position}", operand))
        if form.reverse and form.op not in _COMMUTATIVE:
            step.append((f"reverse{position}", "True"))
        return step

    def _put_scalar_tensor(self, value: Value, inner: _Scalar, other: Value, reverse: bool) -> None:
        arguments: list[tuple[str, Argument]] = [("data", self._full(inner.data, value))]
        arguments += self._step(inner, 0)
        arguments += [("op1", f"nl.{value.name}"), ("operand1", self._full(other, value))]
        if reverse and value.name not in _COMMUTATIVE:
            arguments.append(("reverse1", "True"))
        self._put("scalar_tensor_tensor", value, arguments)

    def _visit_unary(self, value: Value) -> None:
        (source,) = value.args
        assert isinstance(source, Value)
        if value.name == "abs" and value not in self._sums:
            self._put_scalar(value, _Scalar(source, "abs", None, False))
            return
        if value.name == "reciprocal" and self._size(value) < FEW and value not in self._sums:
            self._put("reciprocal", value, [("data", self._full(source, value))])
            return
        total = self._sums.get(value)
        if total in self._extremes:
            is_alone = self._uses[value] == 1
            self._put_sum_in_one_phase(value if is_alone else replace(value), total)
            if is_alone:
                return
            # What else reads the exponentials computes them again, with the maximum of all.
            total = None
        data, scale, bias = self._affine(source)
        arguments: list[tuple[str, Argument]] = [
            ("op", f"nl.{value.name}"),
            ("data", self._full(data, value)),
        ]
        if scale is not None:
            arguments.append(("scale", self._column(scale)))
        if bias is not None:
            arguments.append(("bias", self._column(bias)))
        if total is None:
            self._put("activation", value, arguments)
            return
        arguments += [("reduce_op", "nl.add"), ("reduce_cmd", "nisa.reduce_cmd.reset_reduce")]
        self._done[total] = total
        partial = self._partial(total)
        self._put("activation", value, arguments, partial)
        self._combine(total, partial)

    def _put_sum_in_one_phase(self, value: Value, total: Value) -> None:
        """The sum of exp(x - m), with the maximum m of the tile, and -m, which scales it later. An
        m of -inf is the lowest number instead: a tile of -inf has the sum 0, and not NaN."""
        (x,) = values_of(self._extremes[total].args)
        self._visit(self._extremes[total])
        most = self._most_of_tile[self._extremes[total]]
        below = Value("alu", "multiply", (most, -1.0), torch.float32, most.axes)
        lowest = literal(torch.finfo(torch.float32).min)
        self._put("tensor_scalar", below, [
            ("data", Tile(most, below)), ("op0", "nl.maximum"), ("operand0", lowest),
            ("op1", "nl.multiply"), ("operand1", "-1.0"),
        ])  # fmt: skip
        self._done[total] = total
        partial = Value("reduce", total.name, total.args, torch.float32, most.axes)
        data, bias = self._full(x, value), Tile(below, None)
        arguments: list[tuple[str, Argument]] = [("op", "nl.exp"), ("data", data), ("bias", bias)]
        arguments += [("reduce_op", "nl.add"), ("reduce_cmd", "nisa.reduce_cmd.reset_reduce")]
        self._put("activation", value, arguments, partial)
        parts: list[tuple[str, Argument]] = [("op", "nl.add"), ("data", Tile(partial, None))]
        self._put("combine", total, [*parts, ("below", Tile(below, None))])

    def _affine(self, source: Value) -> tuple[Value, Operand | None, Operand | None]:
        """`source` as data * scale + bias, as far as this saves its own instruction."""
        scale: Operand | None = None
        bias: Operand | None = None
        form = self._absorbable(source)
        if form is not None and form.op in ("add", "subtract"):
            bias = self._as_bias(form)
            if bias is not None:
                if form.op == "subtract" and form.reverse:
                    return form.data, -1.0, bias
                source = form.data
                form = self._absorbable(source)
        if form is not None and form.op == "multiply":
            source, scale = form.data, form.operand
        return source, scale, bias

    def _as_bias(self, form: _Scalar) -> Operand | None:
        operand = form.operand
        negative = form.op == "subtract" and not form.reverse
        if not isinstance(operand, Value):
            assert operand is not None
            return (-operand if negative else operand) if self._scalar_bias else None
        if not negative:
            return operand
        held = self._visit(operand)
        return Value("alu", "multiply", (held, -1.0), torch.float32, operand.axes)

    def _size(self, value: Value) -> int:
        """How many elements a partition of a tile has."""
        return math.prod(map(self._geometry.count, self.free_axes(value)))

    def _visit_reciprocal(self, value: Value) -> None:
        (source,) = value.args
        assert isinstance(source, Value)
        data = self._full(source, value)
        if self._size(value) >= MANY and is_from_one(source):
            step: list[tuple[str, Argument]] = [("op0", "nl.power"), ("operand0", "-1.0")]
            self._put("tensor_scalar", value, [("data", data), *step])
            return
        self._put("reciprocal", value, [("data", data)])

    def _visit_bits(self, value: Value) -> None:
        (source,) = value.args
        assert isinstance(source, Value)
        keep, flip = value.attribute
        arguments: list[tuple[str, Argument]] = [("data", self._full(source, value))]
        arguments += [("op0", "nl.bitwise_and"), ("operand0", str(keep))]
        if flip:
            arguments += [("op1", "nl.bitwise_xor"), ("operand1", str(flip))]
        self._put("tensor_scalar", value, arguments, on_bits=True)

    def _visit_bitwise(self, value: Value) -> None:
        """One operation with a number, or two where the first one has no other user."""
        (source,) = values_of(value.args)
        steps = [value.attribute]
        if source.op == "bitwise" and self._uses[source] == 1 and source not in self._done:
            steps.insert(0, source.attribute)
            (source,) = values_of(source.args)
        arguments: list[tuple[str, Argument]] = [("data", self._full(source, value))]
        for place, (name, number) in enumerate(steps):
            arguments += [(f"op{place}", f"nl.{name}"), (f"operand{place}", str(number))]
        self._put("tensor_scalar", value, arguments)

    def _visit_either(self, value: Value) -> None:
        a, b = (self._full(x, value) for x in values_of(value.args))
        arguments: list[tuple[str, Argument]] = [("data1", a), ("data2", b)]
        self._put("tensor_tensor", value, [*arguments, ("op", "nl.bitwise_or")], on_bits=True)

    def _visit_select(self, value: Value) -> None:
        mask, chosen, other = value.args
        assert isinstance(mask, Value)
        predicate = self._full(mask, value)
        if isinstance(chosen, Value):
            source: Argument = self._full(chosen, value)
            if chosen.dtype is not value.dtype:
                held = self._visit(chosen)
                held = self._visit(Value("cast", "copy", (held,), value.dtype, held.axes))
                source = Tile(held, value)
        else:
            source = literal(_stored(chosen, value.dtype))
        if not isinstance(other, Value):
            self._put("memset", value, [("value", literal(_stored(other, value.dtype)))])
        elif not self._computes_into(other, value):
            self._put("tensor_copy", value, [("src", self._full(other, value))])
        self._put("tensor_copy_predicated", value, [("src", source), ("predicate", predicate)])

    def _computes_into(self, source: Value, value: Value) -> bool:
        """True where `source`, which nothing else reads, is computed in the tile of `value`."""
        if (
            source.op not in ("alu", "bits", "bitwise", "either", "reciprocal", "select", "unary")
            or self._uses[source] != 1
            or (source.dtype, source.axes) != (value.dtype, value.axes)
            or self._visit(source) is not source
        ):
            return False
        self._instructions = [
            replace(i, dst=value) if i.dst is source else i for i in self._instructions
        ]
        return True

    def _visit_reduce(self, value: Value) -> None:
        (source,) = value.args
        assert isinstance(source, Value)
        if value.dtype is torch.float32 and self._sums.get(source) is value:
            self._visit(source)
            return
        partial = self._partial(value)
        if value in self._extremes.values():
            axes = value.axes | {EACH_TILE}
            partial = Value("reduce", value.name, value.args, value.dtype, axes)
            self._most_of_tile[value] = partial
        data = self._full(source, source)
        self._put("tensor_reduce", partial, [("op", f"nl.{value.name}"), ("data", data)])
        self._combine(value, partial)

    def _partial(self, total: Value) -> Value:
        """What a tile gives of a reduction: all of it, or what tiles add up."""
        if not self._geometry.in_phases:
            return total
        # The extreme of half precision is one of its values, which VectorE finds at twice its rate.
        (source,) = values_of(total.args)
        is_value = total.name in ("maximum", "minimum") and source.dtype in _HALVES
        dtype = source.dtype if is_value else torch.float32
        return Value("reduce", total.name, total.args, dtype, total.axes)

    def _combine(self, total: Value, partial: Value) -> None:
        """The total of what tiles add to `partial`; the emitter writes how."""
        if partial is not total:
            op: Argument = f"nl.{total.name}"
            self._put("combine", total, [("op", op), ("data", Tile(partial, None))])


def _is_exact(value: Value) -> bool:
    """Whether `value` is computed in integers; those with a range are so small that float32 holds
    them.
    """
    return value.dtype is torch.int32 and value.attribute is None


def _source(value: Value) -> Value:
    """What a word or a view is taken of."""
    (tile,) = values_of(value.args)
    return tile


_COMMUTATIVE = frozenset(
    {
        "add",
        "multiply",
        "maximum",
        "minimum",
        "equal",
        "not_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
    }
)
