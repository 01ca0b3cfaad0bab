"""Functions that a kernel defines inside, which NKI does not take any more: moved to the module.

What such a function reads of the kernel's own variables becomes parameters of it, which each of its
calls passes. A closure reads a variable when it is called, and so do its calls: the values are the
same. Names are resolved as Python does it (`symtable`).
"""

from __future__ import annotations

import ast
import io
import math
import symtable
import tokenize
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from trnx.migration.source import Source, edited, inside_texts

_ADVICE = "move `{name}` to the module: {why}"


@dataclass(frozen=True)
class WithoutNested:
    """The new text, and what stays: (kernel, function inside, advice)."""

    text: str
    left: tuple[tuple[str, str, str], ...]


class _StaysError(Exception):
    """Why a function stays inside."""


def without_nested(text: str, kernels: Collection[str], mark: str) -> WithoutNested:
    """Move the functions out of those of the module's functions that `kernels` names; above what
    stays is a comment that begins with `mark`.
    """
    source = Source(text)
    scope = symtable.symtable(text, "<kernel>", "exec")
    taken = {symbol.get_name() for symbol in scope.get_symbols()}
    edits: list[tuple[int, int, str]] = []
    left: list[tuple[str, str, str]] = []
    for kernel in source.tree.body:
        if not isinstance(kernel, ast.FunctionDef) or kernel.name not in kernels:
            continue
        inside = _Inside(kernel, next(t for t in scope.get_children() if _is_of(t, kernel)))
        for one, why in inside.left.items():
            advice = _ADVICE.format(name=one.name, why=why)
            left.append((kernel.name, one.name, advice))
            at = source.line_start(one)
            edits.append((at, at, f"{source.indent(one)}{mark} {advice}\n"))
        edits += _moved(source, kernel, inside, taken)
    return WithoutNested(edited(text, edits), tuple(left))


def _is_of(table: symtable.SymbolTable, function: ast.FunctionDef) -> bool:
    return table.get_name() == function.name and table.get_lineno() == function.lineno


class _Inside:
    """The functions inside of a kernel: those that move, each with the variables that it needs,
    and those that stay, each with the reason.
    """

    def __init__(self, kernel: ast.FunctionDef, table: symtable.SymbolTable) -> None:
        self._kernel = kernel
        self._tables = {t.get_name(): t for t in table.get_children()}
        self._found = [one for one in kernel.body if isinstance(one, ast.FunctionDef)]
        self._calls = {one.name: list(_calls(kernel, one.name)) for one in self._found}
        self.left: dict[ast.FunctionDef, str] = {}
        self.moving = {one.name: one for one in self._found if not self._is_passed(one.name)}
        # Whether one moves depends on those that it calls.
        while True:
            self.needed = self._needed()
            stays = dict(self._staying())
            if not stays:
                return
            self.left.update((self.moving[name], why) for name, why in stays.items())
            self.moving = {n: one for n, one in self.moving.items() if n not in stays}

    def calls(self, name: str) -> list[ast.Call]:
        """The calls of a function, in the kernel and in its functions."""
        return self._calls[name]

    def _is_passed(self, name: str) -> bool:
        """True for the body of a register loop, which may stay."""
        reads = sum(
            isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
            for node in ast.walk(self._kernel)
        )
        return reads > len(self._calls[name])

    def _needed(self) -> dict[str, set[str]]:
        """The kernel's variables that each function reads, itself or by those that it calls."""
        frees = {name: set(self._free(name)) for name in self.moving}
        needed = {name: set(found) for name, found in frees.items()}
        for _ in frees:
            for name, found in frees.items():
                needed[name] |= {n for other in found & set(frees) for n in needed[other]}
        return {name: found - set(frees) for name, found in needed.items()}

    def _free(self, name: str) -> Iterator[str]:
        for symbol in self._tables[name].get_symbols():
            if symbol.is_free():
                yield symbol.get_name()

    def _staying(self) -> Iterator[tuple[str, str]]:
        for name, one in self.moving.items():
            try:
                self._require_movable(one)
            except _StaysError as error:
                yield name, str(error)

    def _require_movable(self, one: ast.FunctionDef) -> None:
        given = one.args
        if one.decorator_list or given.vararg or given.kwarg:
            raise _StaysError("it has a decorator, or takes any number of arguments")
        if any(not isinstance(x, ast.Constant) for x in (*given.defaults, *given.kw_defaults) if x):
            raise _StaysError("a default of it is computed in the kernel")
        if any(isinstance(x, ast.FunctionDef | ast.Lambda | ast.Nonlocal) for x in _within(one)):
            raise _StaysError("it has a function inside, or assigns to a variable of the kernel")
        if sum(_binds(node, one.name) for node in ast.walk(self._kernel)) != 1:
            raise _StaysError("its name is bound again")
        if any(_is_spread(call) for call in self._calls[one.name]):
            raise _StaysError("a call of it spreads its arguments")
        first = self._first_call(one.name)
        for name in sorted(self.needed[one.name]):
            if name in self._tables:
                raise _StaysError(f"it calls `{name}`, which stays")
            if first <= self._bound_at(name):
                raise _StaysError(f"it is called before `{name}` is bound")

    def _first_call(self, name: str) -> float:
        """The line of the kernel's own first call; those in its functions are theirs."""
        theirs = {node for one in self._found for node in ast.walk(one)}
        own = (call.lineno for call in self._calls[name] if call not in theirs)
        return min(own, default=math.inf)

    def _bound_at(self, name: str) -> int:
        if any(one.arg == name for one in ast.walk(self._kernel.args) if isinstance(one, ast.arg)):
            return 0
        names = (node for node in ast.walk(self._kernel) if isinstance(node, ast.Name))
        return min((node.lineno for node in names if _binds(node, name)), default=0)


def _moved(
    source: Source, kernel: ast.FunctionDef, inside: _Inside, taken: set[str]
) -> Iterator[tuple[int, int, str]]:
    """The edits that move the functions of a kernel before it."""
    names = {}
    for name in inside.moving:
        names[name] = name if name not in taken else f"{kernel.name}_{name}"
        taken.add(names[name])
    within = [
        edit
        for name in inside.moving
        for edit in _passing(source, inside.calls(name), names[name], inside.needed[name])
    ]
    at = source.line_start(kernel)
    for name, one in inside.moving.items():
        start, end = source.line_start(one), source.span(one)[1]
        own = [edit for edit in within if start <= edit[0] < end]
        own += _taking(source, one, names[name], inside.needed[name])
        shifted = [(first - start, last - start, new) for first, last, new in own]
        yield at, at, f"{_outside(edited(source.text[start:end], shifted), one.col_offset)}\n\n\n"
        behind = source.text[end:]
        yield start, end + len(behind) - len(behind.lstrip("\n")), ""
    moved = [(source.line_start(one), source.span(one)[1]) for one in inside.moving.values()]
    yield from (e for e in within if not any(first <= e[0] < last for first, last in moved))


def _passing(
    source: Source, calls: Iterable[ast.Call], new: str, needed: Collection[str]
) -> Iterator[tuple[int, int, str]]:
    """Calls by the new name, which pass what is needed."""
    passed = [f"{name}={name}" for name in sorted(needed)]
    for call in calls:
        yield (*source.span(call.func), new)
        end = source.span(call)[1] - 1
        yield _appended(source.text, source.span(call.func)[1], end, passed)


def _taking(
    source: Source, one: ast.FunctionDef, new: str, needed: Collection[str]
) -> Iterator[tuple[int, int, str]]:
    """The function by its new name, with parameters for what is needed."""
    start = source.span(one)[0]
    text = source.text[start : source.span(one)[1]]
    named = text.index(one.name, len("def"))
    yield start + named, start + named + len(one.name), new
    opened, closed = _parentheses(text)
    # Behind a parameter with a default each has one.
    taken = [f"{name}=None" if one.args.defaults else name for name in sorted(needed)]
    yield _appended(source.text, start + opened, start + closed, taken)


def _appended(text: str, start: int, end: int, items: Collection[str]) -> tuple[int, int, str]:
    """Items behind what stands between an opening parenthesis at `start` and the one at `end`."""
    before, at = "(", 0
    for token, place in _tokens(text[start : end + 1]):
        if place == end - start:
            break
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before, at = token.string, place + len(token.string)
    between = {"(": "", ",": " "}.get(before, ", ") if items else ""
    return start + at, start + at, between + ", ".join(items)


def _parentheses(text: str) -> tuple[int, int]:
    """Where the parentheses of a function's parameters are in its text."""
    depth, opened = 0, -1
    for token, at in _tokens(text):
        if token.type == tokenize.OP and token.string in "([{":
            opened = at if depth == 0 else opened
            depth += 1
        elif token.type == tokenize.OP and token.string in ")]}":
            depth -= 1
            if depth == 0:
                return opened, at
    raise AssertionError("a function has parameters")


def _tokens(text: str) -> Iterator[tuple[tokenize.TokenInfo, int]]:
    """The tokens of a text, each with the character at which it starts."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        yield token, starts[token.start[0] - 1] + token.start[1]


def _outside(text: str, indent: int) -> str:
    """The text of a function without the spaces before it."""
    dedented = "if True:\n" + text if indent else text
    kept = {line - 1 for line in inside_texts(ast.parse(dedented))} if indent else set()
    lines = text.split("\n")
    return "\n".join(
        line if number in kept or not line[:indent].isspace() else line[indent:]
        for number, line in enumerate(lines, 1)
    )


def _calls(kernel: ast.FunctionDef, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(kernel):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def _is_spread(call: ast.Call) -> bool:
    return any(isinstance(one, ast.Starred) for one in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    )


def _within(function: ast.FunctionDef) -> Iterator[ast.AST]:
    return (node for node in ast.walk(function) if node is not function)


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == name
    return isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
