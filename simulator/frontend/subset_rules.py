"""What a kernel's source may not contain: the table, each row with its sources.

A row whose sources disagree (one rejects what another one uses) is disputed: its finding is a
warning. What only the open front end rejects, and nobody's kernels are known to use, is a finding.
Not in the table, on purpose: `in` and `is`, which the open front end rejects or warns of and
nki-library's kernels use, and `with`, which `nl.no_reorder` needs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

GUIDE = "SDK/nki/get-started/nki-language-guide.rst"
# The open front end, leanprover/KLR: what it reads of Python, and what becomes NKI of it.
READS = "KLR interop/klr/gather.c"
BECOMES = "KLR KLR/NKI/Simplify.lean"
_NKI_TESTS = "SDK/nki/test/test_nki_isa_nc_stream_shuffle.py"
# It names all bits of a uint32, which registers and tiles hold.
_UNSIGNED = "SDK/nki/api/nki/isa/__init__.py (nc_find_index8)"
_LARGEST = 2**31 - 1
_LARGEST_UNSIGNED = 2**32 - 1


@dataclass(frozen=True)
class Rule:
    """A row: syntax that is not taken, the sources, and where it applies among its nodes."""

    what: str
    sources: tuple[str, ...]
    applies: Callable[[Any], bool] = lambda _node: True
    is_disputed: bool = False


def _compares_as(*kinds: type[ast.AST]) -> Callable[[Any], bool]:
    return lambda node: isinstance(node.op, kinds)


def _is_wide(node: ast.Constant) -> bool:
    value = node.value
    return type(value) is int and not -_LARGEST - 1 <= value <= _LARGEST_UNSIGNED


def _is_unsigned(node: ast.Constant) -> bool:
    # The minus of the smallest int32 is an operator of its own.
    return type(node.value) is int and _LARGEST + 1 < node.value <= _LARGEST_UNSIGNED


def _has_other_keys(node: ast.Dict) -> bool:
    return any(
        not (isinstance(key, ast.Constant) and isinstance(key.value, str)) for key in node.keys
    )


def _lone(kind: str, *sources: str) -> tuple[Rule, ...]:
    return (Rule(kind, sources),)


# By the type of the syntax node.
RULES: dict[type[ast.AST], tuple[Rule, ...]] = {
    ast.Lambda: _lone("a lambda", READS),
    ast.ListComp: (Rule("a list comprehension", (READS, _NKI_TESTS), is_disputed=True),),
    ast.SetComp: _lone("a comprehension", READS),
    ast.DictComp: _lone("a comprehension", READS),
    ast.GeneratorExp: _lone("a generator expression", READS),
    ast.NamedExpr: _lone("an assignment expression", READS),
    ast.Yield: _lone("yield", READS),
    ast.YieldFrom: _lone("yield", READS),
    ast.Await: _lone("await", READS),
    ast.Starred: (
        Rule("a starred element or argument", (BECOMES, "nki-library"), is_disputed=True),
    ),
    ast.Set: _lone("a set", GUIDE, READS),
    ast.Dict: (Rule("a dict whose keys are not strings", (GUIDE, BECOMES), _has_other_keys),),
    ast.Constant: (
        Rule("an integer of more than 32 bits", (GUIDE, READS), _is_wide),
        Rule("an integer beyond int32", (_UNSIGNED, READS), _is_unsigned, is_disputed=True),
        Rule(
            "bytes or a complex number",
            (GUIDE, READS),
            lambda node: isinstance(node.value, bytes | complex),
        ),
    ),
    ast.BinOp: (Rule("the operator @", (BECOMES,), _compares_as(ast.MatMult)),),
    ast.keyword: (
        Rule("an expanded keyword argument (**)", (BECOMES,), lambda node: node.arg is None),
    ),
    ast.FormattedValue: (
        Rule(
            "an f-string with a format spec",
            (GUIDE, READS),
            lambda node: node.format_spec is not None,
        ),
    ),
    ast.For: (Rule("a for loop with else", (BECOMES,), lambda node: bool(node.orelse)),),
    ast.While: (Rule("a while loop with else", (BECOMES,), lambda node: bool(node.orelse)),),
    ast.AsyncFunctionDef: _lone("an async function", READS),
    ast.AsyncFor: _lone("an async loop", READS),
    ast.AsyncWith: _lone("an async with", READS),
    ast.ClassDef: _lone("a class inside of a function", READS),
    ast.Delete: _lone("del", READS),
    ast.Match: _lone("match", READS),
    ast.Try: _lone("try", READS),
    ast.TryStar: _lone("try", READS),
    ast.Raise: _lone("raise", READS),
    ast.Import: _lone("an import inside of a function", READS),
    ast.ImportFrom: _lone("an import inside of a function", READS),
    ast.Global: _lone("global", READS),
    ast.Nonlocal: _lone("nonlocal", READS),
}

# Of a function's parameters. The open front end warns of the last two and goes on.
PARAMETERS = (
    Rule("*args", (BECOMES,), lambda arguments: arguments.vararg is not None),
    Rule("**kwargs", (BECOMES,), lambda arguments: arguments.kwarg is not None),
    Rule("position-only parameters", (BECOMES,), lambda a: bool(a.posonlyargs), is_disputed=True),
    Rule("keyword-only parameters", (BECOMES,), lambda a: bool(a.kwonlyargs), is_disputed=True),
)
