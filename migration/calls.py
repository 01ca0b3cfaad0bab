"""Small facts about calls of older NKI that need no context."""

from __future__ import annotations

import ast

from trnx.migration.names import Names
from trnx.migration.source import Source

# What older NKI took from numpy as an operator; the rest have the same name in nki.language.
_OPERATORS = {
    "amax": "maximum", "max": "maximum", "amin": "minimum", "min": "minimum", "sum": "add",
    "mod": "mod", "arctan": "arctan", "true_divide": "divide", "absolute": "abs",
}  # fmt: skip
_DTYPES = (
    "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "bool_",
)  # fmt: skip
_BUFFERS = ("sbuf", "psum", "hbm", "private_hbm", "shared_hbm")
# Parameters of allocations that a later NKI does not take, and whose values change no result.
WITHOUT_EFFECT = ("lazy_initialization",)
# Enumerations by the numbers that NKI 0.2 took, and by its texts: (parameter, text) -> member.
_BY_NUMBER = {"dge_mode": ("none", "swdge", "hwdge", "unknown"), "oob_mode": ("error", "skip")}
# SDK/nki/test/test_nki_isa_nc_matmul.py: the layout [K, 2, F] of today's `double_row`.
_BY_TEXT = {("perf_mode", "double_row_gen3"): "matmul_perf_mode.double_row"}
_PYTHON_DTYPES = {"bool": "uint8", "int": "int32", "float": "float32"}
_ARITHMETIC: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide",
    ast.Pow: "power", ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor", ast.Mod: "mod",
    ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal",
    ast.USub: "negative", ast.Invert: "invert",
}  # fmt: skip


def arithmetic(op: ast.AST) -> str:
    """The operator of nki.language for one of Python's, or ""."""
    return _ARITHMETIC.get(type(op), "")


def placement(names: Names, node: ast.expr) -> str:
    """`sbuf` or `psum` where NKI 0.1 gave a tensor its place (`nki.compiler.sbuf.alloc(...)`, also
    without a call), else "".
    """
    whole = names.dotted(node.func if isinstance(node, ast.Call) else node)
    module, _, rest = whole.removeprefix("nki.compiler.").partition(".")
    is_one = whole.startswith("nki.compiler.") and rest in ("", "alloc", "mod_alloc", "auto_alloc")
    return module if is_one and module in ("sbuf", "psum") else ""


class Spelling:
    """Rewrites arguments whose spelling alone has changed."""

    def __init__(self, source: Source, names: Names) -> None:
        self._source = source
        self._names = names

    def of_arguments(self, call: ast.Call, parameters: tuple[str, ...] = ()) -> None:
        """Operators and dtypes of numpy, buffers as strings, enumerations as numbers."""
        named = list(zip(parameters, call.args, strict=False))
        named += [(keyword.arg or "", keyword.value) for keyword in call.keywords]
        for parameter, value in named:
            if (number := self._scalar(value)) is not None:
                self._source.replace(value, number)
            elif parameter in ("op", "op0", "op1", "reduce_op", "comp_op0", "comp_op1", "cmp_op"):
                self._operator(value)
            elif parameter == "dtype":
                self._dtype(value)
            elif parameter == "buffer" and isinstance(value, ast.Constant):
                if value.value in _BUFFERS:
                    self._use(value, "nki.language", str(value.value))
            elif parameter == "buffer" and (memory := placement(self._names, value)):
                # The compiler places what has no address.
                self._use(value, "nki.language", memory)
            elif parameter in _BY_NUMBER and isinstance(value, ast.Constant):
                self._numbered(parameter, value)
            elif member := _BY_TEXT.get((parameter, _text(value))):
                self._use(value, "nki.isa", member)

    def _scalar(self, node: ast.expr) -> str | None:
        """The number in `np.dtype(np.float32).type(0.5)`, which an instruction rounds as well."""
        if not (isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords):
            return None
        made, number = node.func, node.args[0]
        if not (isinstance(made, ast.Attribute) and made.attr == "type"):
            return None
        dtype = made.value
        if not (isinstance(dtype, ast.Call) and self._names.member(dtype.func, "numpy") == "dtype"):
            return None
        name = self._names.member(dtype.args[0], "numpy") if len(dtype.args) == 1 else ""
        whole = number.operand if isinstance(number, ast.UnaryOp) else number
        if not isinstance(whole, ast.Constant) or type(whole.value) not in (int, float):
            return None
        # float16 and an integer's cut would change the number before the instruction sees it.
        is_kept = name in ("float32", "float64") or type(whole.value) is int
        return self._source.render(number) if is_kept else None

    def _use(self, node: ast.expr, module: str, name: str) -> None:
        self._source.replace(node, self._names.spelt(module, name))

    def _operator(self, node: ast.expr) -> None:
        name = self._names.member(node, "numpy")
        if name:
            self._use(node, "nki.language", _OPERATORS.get(name, name))
        elif (own := self._names.language(node)) in ("max", "min", "sum"):
            self._use(node, "nki.language", _OPERATORS[own])

    def _dtype(self, node: ast.expr) -> None:
        name = self._names.member(node, "numpy")
        if name in _DTYPES or name in _PYTHON_DTYPES:
            self._use(node, "nki.language", _PYTHON_DTYPES.get(name, name))
        elif isinstance(node, ast.Name) and node.id in _PYTHON_DTYPES:
            self._use(node, "nki.language", _PYTHON_DTYPES[node.id])

    def _numbered(self, parameter: str, node: ast.Constant) -> None:
        members = _BY_NUMBER[parameter]
        if type(node.value) is int and node.value < len(members):
            self._source.replace(
                node, f"{self._names.spelt('nki.isa', parameter)}.{members[node.value]}"
            )


def _text(node: ast.expr) -> str:
    """The text of a constant; "" of anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def without(source: Source, call: ast.Call, *gone: str, first: str = "") -> str:
    """The text of a call without some keywords, and with `first` before all arguments."""
    kept: list[ast.expr | ast.keyword] = [
        *call.args,
        *(keyword for keyword in call.keywords if keyword.arg not in gone),
    ]
    function = source.render(call.func)
    if len(kept) == len(call.args) + len(call.keywords) and kept:
        # Nothing goes: the arguments keep their lines.
        start = source.span(kept[0])[0]
        opening = source.text[source.span(call.func)[1] : start]
        pieces = [function, opening, f"{first}, " if first else ""]
        for left, right in zip(kept, [*kept[1:], None], strict=True):
            end = source.span(call)[1] if right is None else source.span(right)[0]
            pieces += [source.render(left), source.text[source.span(left)[1] : end]]
        return "".join(pieces)
    texts = [first] if first else []
    return f"{function}({', '.join([*texts, *(source.render(one) for one in kept)])})"
