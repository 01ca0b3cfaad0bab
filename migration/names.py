"""What the names of a file stand for in NKI, and its imports for NKI 0.6."""

from __future__ import annotations

import ast
from collections.abc import Set

from trnx.migration.source import DELETED, Source
from trnx.simulator.older_dialects import changed_name

_OLD = "neuronxcc."
# What nki 0.6 has no module or name for; the use is told, the import goes.
_GONE = ("nki.compiler", "nki.kernels", "nki.tensor")


class Names:
    """Aliases of a file's imports."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._aliases: dict[str, str] = {}
        self._imports: list[ast.Import | ast.ImportFrom] = []
        self._added: list[str] = []
        self._used: Set[str] = frozenset()
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Import):
                self._imports.append(node)
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    whole = alias.name if alias.asname else name
                    self._aliases[name] = whole.removeprefix(_OLD)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._imports.append(node)
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}".removeprefix(_OLD)
                    self._aliases[alias.asname or alias.name] = whole

    def dotted(self, node: ast.expr) -> str:
        """`nki.language.arange` for what the file calls `nl.arange`; "" for what is no name."""
        if isinstance(node, ast.Name):
            return self._aliases.get(node.id, "")
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return f"{owner}.{node.attr}".removeprefix(_OLD) if owner else ""
        return ""

    def member(self, node: ast.expr, module: str) -> str:
        """The name in `module` that an expression stands for, or ""."""
        owner, _, name = self.dotted(node).rpartition(".")
        return name if owner == module else ""

    def language(self, node: ast.expr) -> str:
        """The name in nki.language, or ""."""
        return self.member(node, "nki.language")

    def isa(self, node: ast.expr) -> str:
        """The name in nki.isa, or ""."""
        return self.member(node, "nki.isa")

    def spelt(self, module: str, name: str) -> str:
        """How the file writes `module.name`, with an import if it has none yet."""
        for alias, whole in self._aliases.items():
            if whole == module:
                return f"{alias}.{name}"
            if whole == f"{module}.{name}":
                return alias
        short = {"nki": "nki", "nki.language": "nl", "nki.isa": "nisa"}[module]
        self._aliases[short] = module
        self._added.append(f"import {module} as {short}" if short != "nki" else "import nki")
        return f"{short}.{name}"

    @property
    def is_nki(self) -> bool:
        """True where the file imports NKI, old or new."""
        return any(whole.partition(".")[0] == "nki" for whole in self._aliases.values())

    @property
    def is_old(self) -> bool:
        """True where the file imports `neuronxcc.nki`."""
        return any("neuronxcc" in ast.unparse(one) or _is_nki_jit(one) for one in self._imports)

    def leave_kernel(self, node: ast.Import | ast.ImportFrom) -> None:
        """Move an import out of a kernel, where the device's front end takes none."""
        above = {_bound(one, alias) for one in self._imports if _is_top(one) for alias in one.names}
        self._source.replace(node, DELETED)
        for alias in node.names:
            if _bound(node, alias) not in above:
                self._added += _imported(node, alias)

    def rewrite_imports(self, used: Set[str]) -> str:
        """Imports of `neuronxcc.nki` as those of `nki`, and what the new code needs besides: the
        lines for the top of a file that has no import of NKI there. What is gone stays imported
        where it is among the names `used`, so that its use is told and not a missing name.
        """
        self._used = used
        last = None
        for node in self._imports:
            if self._source.is_replaced(node):
                continue
            if not _is_top(node) and self._is_repeated(node):
                self._source.replace(node, DELETED)
                continue
            new = [text for alias in node.names for text in _imported(node, alias, self._used)]
            if new != [text for alias in node.names for text in _unchanged(node, alias)]:
                indent = self._source.indent(node)
                lines = list(dict.fromkeys(new)) or ["pass"] * (not _is_top(node))
                self._source.replace(node, f"\n{indent}".join(lines))
            if any(self._aliases.get(_bound(node, alias), "").startswith("nki") for alias in
                   node.names) and _is_top(node):  # fmt: skip
                last = node
        added = list(dict.fromkeys(self._added))
        if last is None:
            return "".join(f"{line}\n" for line in added)
        if added:
            before = self._source.render(last)
            self._source.replace(last, "\n".join([before, *added]).lstrip("\n"))
        return ""

    def _is_repeated(self, node: ast.Import | ast.ImportFrom) -> bool:
        """True for an import of NKI within a function that the module has, too."""
        above = {_bound(one, alias) for one in self._imports if _is_top(one) for alias in one.names}
        names = [_bound(node, alias) for alias in node.names]
        return all(n in above and self._aliases[n].startswith("nki") for n in names)


def _split(whole: str) -> tuple[str, str]:
    parent, _, name = whole.rpartition(".")
    return parent, name


def _is_top(node: ast.stmt) -> bool:
    return node.col_offset == 0


def _bound(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    if alias.asname:
        return alias.asname
    return alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name


def _is_nki_jit(node: ast.Import | ast.ImportFrom) -> bool:
    return isinstance(node, ast.ImportFrom) and any(a.name == "nki_jit" for a in node.names)


def _unchanged(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> list[str]:
    named = f" as {alias.asname}" if alias.asname else ""
    if isinstance(node, ast.Import):
        return [f"import {alias.name}{named}"]
    return [f"from {'.' * node.level}{node.module} import {alias.name}{named}"]


def _imported(
    node: ast.Import | ast.ImportFrom, alias: ast.alias, used: Set[str] = frozenset()
) -> list[str]:
    """The statements for one alias of an import."""
    named = f" as {alias.asname}" if alias.asname else ""
    if isinstance(node, ast.Import):
        whole = alias.name
        if whole.startswith(_OLD):
            whole = whole.removeprefix(_OLD)
            if whole.startswith(_GONE):
                return []
            return ["import nki" if (whole, alias.asname) == ("nki", "nki") else
                    f"import {whole}{named}"]  # fmt: skip
        return _unchanged(node, alias)
    module = node.module or ""
    if _is_nki_jit(node) and alias.name == "nki_jit":
        return ["import nki"]
    if not f"{module}.".startswith(_OLD):
        return _unchanged(node, alias)
    whole = f"{module}.{alias.name}".removeprefix(_OLD)
    is_told = _split(whole)[0] == "nki" and _bound(node, alias) in used
    if whole.startswith(_GONE) or (changed_name(*_split(whole)) is not None and not is_told):
        return []
    if whole == "nki":
        return [f"import nki{named}"]
    parent, _, name = whole.rpartition(".")
    return [f"from {parent} import {name}{named}"]
