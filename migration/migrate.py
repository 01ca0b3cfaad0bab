"""`migrate(text)`: a file of older NKI for NKI 0.6, with comments where an author must decide."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trnx.migration.calls import Spelling, without
from trnx.migration.config_classes import derive_config_classes
from trnx.migration.kernels import KernelRewriter
from trnx.migration.launch_grids import WithoutGrids, without_grids
from trnx.migration.names import Names
from trnx.migration.nested import without_nested
from trnx.migration.passed_lists import PassedLists
from trnx.migration.passed_tiles import PassedTiles
from trnx.migration.source import DELETED, Source
from trnx.migration.uses import names_of
from trnx.simulator.errors import TrnxError
from trnx.simulator.older_dialects import changed_parameter

MARK = "# trnx migrate:"
_KERNEL_CALLS = ("load", "store")
_DECORATORS = ("nki.baremetal", "nki.benchmark", "nki.profile", "nki.trace", "nki.jit")


class NotPythonError(TrnxError):
    """A file that is no valid Python."""


@dataclass(frozen=True)
class Migration:
    """The new text of a file, and what is left to its author: (line of the old file, advice)."""

    old: str
    new: str
    notes: tuple[tuple[int, str], ...]

    def diff(self, name: str) -> str:
        """A unified diff."""
        return "".join(
            difflib.unified_diff(
                self.old.splitlines(keepends=True),
                self.new.splitlines(keepends=True),
                f"a/{name}",
                f"b/{name}",
            )
        )


def migrate(text: str, name: str = "<kernel>") -> Migration:
    """Rewrite what is mechanical. Raises NotPythonError."""
    try:
        grids = without_grids(text)
        source = Source(grids.text)
    except SyntaxError as error:
        raise NotPythonError(f"{name}:{error.lineno}: {error.msg}") from None
    names = Names(source)
    if not names.is_nki:
        return Migration(text, text, ())
    notes = _notes(source.tree, grids)
    kernels = _functions(source.tree)
    passed, tiles = PassedLists(kernels, names), PassedTiles(kernels, names)
    for function in kernels:
        if names.is_old or _uses_old(function, names):
            KernelRewriter(source, names, notes, passed, tiles).run(function)
        _imports(function, names)
        _decorators(function, source, names)
    runners = _runners(source.tree, names)
    _calls(source, names, notes, runners)
    _attributes(source, names)
    derive_config_classes((one for one in kernels if _is_kernel(one, names)), source, names)
    above = names.rewrite_imports(_used(source))
    before = {
        statement: "".join(f"{source.indent(statement)}{MARK} {note}\n" for note in found)
        for statement, found in notes.items()
    }
    if above:
        first = source.tree.body[1 if ast.get_docstring(source.tree) else 0]
        before[first] = f"{above}{before.get(first, '')}"
    functions = {one.name: one for one in _functions(source.tree) if _is_kernel(one, names)}
    nested = without_nested(_tidy(source.result(before)), functions, MARK)
    for kernel, name, advice in nested.left:
        notes.setdefault(_inside(functions[kernel], name), []).append(advice)
    listed = sorted((grids.lines[s.lineno - 1], n) for s, found in notes.items() for n in found)
    return Migration(text, nested.text, tuple(listed))


def _inside(kernel: ast.FunctionDef, name: str) -> ast.stmt:
    return next(one for one in kernel.body if isinstance(one, ast.FunctionDef) and one.name == name)


def _notes(tree: ast.AST, grids: WithoutGrids) -> dict[ast.stmt, list[str]]:
    """What is left of launch grids, by the statements of the new tree."""
    found: dict[ast.stmt, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            line = grids.lines[node.lineno - 1]
            if texts := [text for number, text in grids.notes if number == line]:
                found[node] = texts
    return found


def _used(source: Source) -> set[str]:
    """The names that the new code reads; all of the old one's where that is no valid Python."""
    try:
        return names_of(ast.parse(_tidy(source.result({}))))
    except SyntaxError:
        return names_of(source.tree)


def _functions(tree: ast.AST) -> list[ast.FunctionDef]:
    """Functions and methods; what is nested in one is rewritten with it."""
    found: list[ast.FunctionDef] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            found.append(node)
        elif isinstance(node, ast.ClassDef | ast.If | ast.Try):
            found += _functions(node)
    return found


def _uses_old(function: ast.FunctionDef, names: Names) -> bool:
    """True where a function of a file that imports today's NKI has names of NKI 0.1."""
    return any(
        isinstance(node, ast.expr) and names.language(node) in ("arange", "mgrid", "par_dim")
        for node in ast.walk(function)
    )


def _is_kernel(function: ast.FunctionDef, names: Names) -> bool:
    """True for a kernel, and for a function that kernels call."""
    is_decorated = any(
        names.dotted(one.func if isinstance(one, ast.Call) else one) in _DECORATORS
        for one in function.decorator_list
    )
    return is_decorated or any(
        isinstance(node, ast.Call)
        and (names.isa(node.func) or names.language(node.func) in _KERNEL_CALLS)
        for node in ast.walk(function)
    )


def _imports(function: ast.FunctionDef, names: Names) -> None:
    """Imports of a kernel, or of a function that kernels call, go to the top of the file."""
    is_kernel = _is_kernel(function, names)
    for node in ast.walk(function):
        if is_kernel and isinstance(node, ast.Import | ast.ImportFrom):
            names.leave_kernel(node)


def _decorators(function: ast.FunctionDef, source: Source, names: Names) -> None:
    for decorator in function.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        whole = names.dotted(call)
        if whole.startswith("nki.compiler."):
            source.replace(decorator, DELETED)
        elif whole in _DECORATORS[:-1] or whole == "torch_neuronx.nki_jit":
            source.replace(decorator, names.spelt("nki", "jit"))
        elif whole == "nki.jit" and isinstance(decorator, ast.Call):
            kept = [k for k in decorator.keywords if k.arg not in ("mode", "platform_target")]
            if len(kept) < len(decorator.keywords):
                text = source.render(call)
                rest = ", ".join(source.render(keyword) for keyword in kept)
                source.replace(decorator, f"{text}({rest})" if rest else text)


def _runners(tree: ast.AST, names: Names) -> dict[str, ast.expr]:
    """Kernels by the names of what runs them: `run = nki.baremetal(kernel)`, and nothing else."""
    found: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            kernel = _run_kernel(node.value, names) if isinstance(node.value, ast.Call) else None
            for target in node.targets:
                found.setdefault(ast.unparse(target), []).append(kernel)
    return {
        name: kernels[0]
        for name, kernels in found.items()
        if kernels[0] is not None and len({one and ast.unparse(one) for one in kernels}) == 1
    }


def _calls(
    source: Source, names: Names, notes: dict[ast.stmt, list[str]], runners: Mapping[str, ast.expr]
) -> None:
    """Calls that changed between NKI 0.2 and 0.6, and those that run kernels."""
    for statement in ast.walk(source.tree):
        if not isinstance(statement, ast.stmt) or isinstance(statement, ast.FunctionDef):
            continue
        nodes = _own_expressions(statement)
        # The inner call of `nki.baremetal()(kernel)`.
        makers = {node.func for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            if isinstance(node, ast.Call) and not source.is_replaced(node):
                if node in makers and names.dotted(node.func) == "nki.baremetal" and not node.args:
                    continue
                note = _changed_call(node, source, names, runners)
                if note:
                    notes.setdefault(statement, []).append(note)


def _own_expressions(statement: ast.stmt) -> list[ast.AST]:
    """The nodes of a statement but those of statements within it; inner ones first."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr | ast.keyword | ast.withitem):
            found += ast.walk(child)
    return found[::-1]


def _attributes(source: Source, names: Names) -> None:
    """`x: nki.tensor` of NKI 0.1, and the level `logging.OFF`, which its import made."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Attribute):
            continue
        if names.dotted(node) == "nki.tensor":
            source.replace(node, names.spelt("nki.language", "NkiTensor"))
        elif names.dotted(node) == "logging.OFF" and names.is_old:
            source.replace(node, f"{source.render(node.value)}.CRITICAL")


def _run_kernel(node: ast.Call, names: Names) -> ast.expr | None:
    """The kernel of `nki.baremetal(kernel)` and `nki.baremetal(...)(kernel)`."""
    maker = node.func.func if isinstance(node.func, ast.Call) and not node.func.args else node.func
    is_one = names.dotted(maker) == "nki.baremetal" and len(node.args) == 1
    return node.args[0] if is_one else None


def _simulated(
    kernel: ast.expr, source: Source, names: Names, runners: Mapping[str, ast.expr]
) -> str:
    """What simulates a kernel, a launch grid of one, or what runs one already."""
    grid = ""
    if isinstance(kernel, ast.Subscript) and source.render(kernel.value) in runners:
        grid = f"[{source.render(kernel.slice)}]"
        kernel = runners[source.render(kernel.value)]
    elif source.render(kernel) in runners:
        return source.render(kernel)
    return f"{names.spelt('nki', 'simulate')}({source.render(kernel)}{grid})"


def _memory_viewed(node: ast.Call, source: Source) -> str:
    """The memory of `sbuf.view(dtype=..., shape=...)`, a keyword of NKI 0.2's language, or ""."""
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if not (isinstance(owner, ast.Name) and ast.unparse(node.func) == f"{owner.id}.view"):
        return ""
    is_bound = any(
        isinstance(one, ast.Name) and one.id == owner.id and not isinstance(one.ctx, ast.Load)
        for one in ast.walk(source.tree)
    )
    return (
        "" if is_bound else {"sbuf": "sbuf", "psum": "psum", "hbm": "shared_hbm"}.get(owner.id, "")
    )


def _changed_call(
    node: ast.Call, source: Source, names: Names, runners: Mapping[str, ast.expr]
) -> str:
    whole = names.dotted(node.func)
    isa = names.isa(node.func)
    given = {keyword.arg: keyword for keyword in node.keywords}
    if isa or names.language(node.func):
        Spelling(source, names).of_arguments(node)
    if whole == "nki.simulate_kernel" and node.args:
        given_all: list[ast.expr | ast.keyword] = [*node.args[1:], *node.keywords]
        rest = ", ".join(source.render(one) for one in given_all)
        source.replace(node, f"{_simulated(node.args[0], source, names, runners)}({rest})")
    elif isinstance(node.func, ast.Subscript) and source.render(node.func.value) in runners:
        source.replace(node.func, _simulated(node.func, source, names, runners))
    elif (kernel := _run_kernel(node, names)) is not None:
        source.replace(node, f"{names.spelt('nki', 'simulate')}({source.render(kernel)})")
    elif whole in ("nki.benchmark", "nki.profile", "nki.baremetal"):
        return f"{whole} is gone: decorate with nki.jit; neuron-profile or `trnx profile` measure"
    elif (memory := _memory_viewed(node, source)) and {"shape", "dtype"} <= set(given):
        shape, dtype = (source.render(given[name].value) for name in ("shape", "dtype"))
        made, buffer = names.spelt("nki.language", "ndarray"), names.spelt("nki.language", memory)
        source.replace(node, f"{made}({shape}, dtype={dtype}, buffer={buffer})")
    elif isa == "dma_copy" and "dst_rmw_op" in given:
        return f"dst_rmw_op is {changed_parameter('dma_copy', 'dst_rmw_op')}"
    elif isa == "dma_copy" and "unique_indices" in given:
        source.replace(node, without(source, node, "unique_indices"))
    elif isa == "sendrecv" and "use_gpsimd_dma" in given:
        keyword = given["use_gpsimd_dma"]
        if not isinstance(keyword.value, ast.Constant):
            return f"use_gpsimd_dma is {changed_parameter('sendrecv', 'use_gpsimd_dma')}"
        member = "gpsimd_dma" if keyword.value.value else "dma"
        engine = names.spelt("nki.isa", "dma_engine")
        source.replace(keyword, f"dma_engine={engine}.{member}")
    elif isa == "register_move" and "imm" in given:
        alloc = names.spelt("nki.isa", "register_alloc")
        source.replace(given["imm"], f"src={alloc}({source.render(given['imm'].value)})")
    elif isa and "dst" in given and {"mask", "dtype"} & set(given):
        source.replace(node, without(source, node, "dtype"))
    elif names.member(node.func, "nki.collectives") and "num_channels" in given:
        source.replace(node, without(source, node, "num_channels"))
    return ""


def _tidy(text: str) -> str:
    """Without the lines of statements that are gone."""
    text = re.sub(rf"^[ \t]*@?{DELETED}[ \t]*\n", "", text, flags=re.MULTILINE)
    return text.replace(f"{DELETED} ", "").replace(DELETED, "")
