"""The body of a kernel that had a program for each tile: what its programs share, and a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from trnx.migration.names import Names
from trnx.migration.source import inside_texts
from trnx.migration.uses import names_of

# What a shape may be made of besides constants and shapes; whatever else is called may make a tile.
_PLAIN_CALLS = (
    "len", "int", "float", "min", "max", "abs", "tuple", "sum", "divmod", "isinstance", "getattr",
)  # fmt: skip
_CHANGING = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_MEETINGS = ("core_barrier", "sendrecv")


class GridBodyError(Exception):
    """Why a body stays as it is."""


class Body:
    """The statements of a kernel: `shared` ones stand before the loop, `looped` ones in it, `last`
    ones return what it returns. `variables`: those of the loops, where they have names already.
    Raises GridBodyError.
    """

    def __init__(
        self, function: ast.FunctionDef, names: Names, variables: Sequence[str] = ()
    ) -> None:
        self._names = names
        self._variables = set(variables)
        statements = list(function.body)
        self.last: list[ast.stmt] = []
        while statements and _returns(statements[-1]):
            self.last.insert(0, statements.pop())
        _require_one_way(function, self.last, names)
        self.shared = self._same_for_all(statements)
        self.looped = [one for one in statements if one not in self.shared]
        self._require_apart(function)

    def _same_for_all(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Results, docstring, and what is the same for all programs."""
        shared = [one for one in statements if self._is_same(one)]
        shared += [one for one in statements[:1] if isinstance(one, ast.Expr) and one not in shared]
        while True:
            kept = [one for one in shared if not self._is_of_programs(one, shared, statements)]
            if len(kept) == len(shared):
                return [one for one in statements if one in kept]
            shared = kept

    def _is_of_programs(
        self, one: ast.stmt, shared: Sequence[ast.stmt], statements: Sequence[ast.stmt]
    ) -> bool:
        """True where a statement needs what is not shared, or would be seen too early."""
        looped = [other for other in statements if other not in shared]
        inner = {name for other in looped for name in _bound(other)} | self._variables
        before = looped[: sum(statements.index(x) < statements.index(one) for x in looped)]
        is_early = any(_bound(one) & names_of(other) for other in before)
        return bool((names_of(one) | _bound(one)) & inner) or is_early

    def _require_apart(self, function: ast.FunctionDef) -> None:
        inner = {name for one in self.looped for name in _bound(one)}
        given = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
        if both := inner & given:
            raise GridBodyError(f"`{min(both)}` is bound again in each program")
        for one in _own_nodes(self.looped):
            if isinstance(one, ast.stmt) and self._is_result(one):
                raise GridBodyError(f"`{min(_bound(one))}` or its shape is made by each program")
        if both := {name for one in self.last for name in names_of(one)} & inner:
            raise GridBodyError(f"`{min(both)}` is returned, but not in shared HBM")
        if not self.looped:
            raise GridBodyError("no statement is of one program")

    def _is_same(self, statement: ast.stmt) -> bool:
        """True for what is the same for all programs, if what it reads is."""
        is_same = self._is_plain(statement) or self._is_result(statement)
        return is_same or self._is_default(statement)

    def _is_default(self, statement: ast.stmt) -> bool:
        """`config = config or Config()`, without anything of NKI."""
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.BoolOp):
            return False
        value = statement.value
        calls = [one for one in ast.walk(value) if isinstance(one, ast.Call)]
        is_own = ast.unparse(value.values[0]) == ast.unparse(statement.targets[0])
        return (
            is_own
            and isinstance(value.op, ast.Or)
            and not any(self._names.dotted(c.func).startswith("nki.") for c in calls)
        )

    def _is_plain(self, statement: ast.stmt) -> bool:
        """An import, an assertion, or an assignment of what no program can change; conditions."""
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass):
            return True
        if isinstance(statement, ast.If):
            within = [*statement.body, *statement.orelse]
            return self._is_fixed(statement.test) and all(map(self._is_same, within))
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Assert):
            return False
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        flat = [one for t in targets for one in (t.elts if isinstance(t, ast.Tuple) else [t])]
        return all(isinstance(one, ast.Name) for one in flat) and self._is_fixed(statement)

    def _is_fixed(self, node: ast.AST) -> bool:
        """True for what no call can have made, and nothing changes later."""
        return not any(
            isinstance(one, _CHANGING) or (isinstance(one, ast.Call) and not self._is_free(one))
            for one in ast.walk(node)
        )

    def _is_free(self, call: ast.Call) -> bool:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        is_size = self._names.language(call.func) in ("num_programs", "program_ndim")
        is_number = self._names.dotted(call.func).startswith(("math.", "numpy.dtype"))
        return name in _PLAIN_CALLS or is_size or is_number

    def _is_result(self, statement: ast.stmt) -> bool:
        """`out = nl.ndarray(..., buffer=nl.shared_hbm)`."""
        value = statement.value if isinstance(statement, ast.Assign) else None
        return (
            isinstance(value, ast.Call)
            and self._names.language(value.func) == "ndarray"
            and any(
                keyword.arg == "buffer" and self._names.language(keyword.value) == "shared_hbm"
                for keyword in value.keywords
            )
        )


def _returns(statement: ast.stmt) -> bool:
    """True for `return`, also under conditions."""
    if isinstance(statement, ast.If):
        return all(map(_returns, [*statement.body, *statement.orelse]))
    return isinstance(statement, ast.Return)


def _require_one_way(function: ast.FunctionDef, last: Sequence[ast.stmt], names: Names) -> None:
    """It returns at the end alone, and nothing is in it in which programs meet."""
    ends = [node for one in last for node in ast.walk(one)]
    for node in _own_nodes(function.body):
        if isinstance(node, ast.Return) and node not in ends:
            raise GridBodyError("it returns from within")
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal):
            raise GridBodyError("it has state of its own")
        if isinstance(node, ast.Call) and names.isa(node.func) in _MEETINGS:
            raise GridBodyError("its programs meet")


def _own_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes but those of functions within."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            continue
        yield node
        yield from _own_nodes(ast.iter_child_nodes(node))


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, at any depth but in functions within."""
    found: set[str] = set()
    for node in _own_nodes([statement]):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.partition(".")[0])
    return found | ({statement.name} if isinstance(statement, ast.FunctionDef) else set())


def looped(
    lines: Sequence[tuple[str, int]], function: ast.FunctionDef, body: Body, heads: Sequence[str]
) -> list[tuple[str, int]]:
    """The lines of the function's body, each with its number in the old file: `heads` are the
    headers of the loops, a line each.
    """
    before = function.body[0].lineno - 1
    parts: dict[ast.stmt, list[tuple[str, int]]] = {}
    at = before
    for statement in function.body:
        assert statement.end_lineno is not None
        parts[statement] = list(lines[at : statement.end_lineno])
        at = statement.end_lineno
    indent = " " * function.body[0].col_offset
    step = " " * (function.body[0].col_offset - function.col_offset)
    found = [line for one in body.shared for line in parts[one]]
    first = parts[body.looped[0]]
    while not first[0][0].strip():
        found.append(first.pop(0))
    number = first[0][1]
    depth = 0
    for head in heads:
        found.append((f"{indent}{step * depth}{head}\n", number))
        depth += head.startswith("for ")
    inside = inside_texts(function)
    for one in body.looped:
        start = (one.end_lineno or 0) - len(parts[one])
        for place, (text, old) in enumerate(parts[one], start + 1):
            is_text = place in inside or not text.strip()
            found.append((text if is_text else f"{step * depth}{text}", old))
    return found + [line for one in body.last for line in parts[one]]
