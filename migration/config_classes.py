"""Data classes that kernels read: they derive from NKIObject since NKI 0.2."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from trnx.migration.names import Names
from trnx.migration.source import Source
from trnx.migration.uses import names_of


def derive_config_classes(kernels: Iterable[ast.FunctionDef], source: Source, names: Names) -> None:
    """Data classes of fields alone, without a base, whose names a kernel reads, get one."""
    used = {name for kernel in kernels for statement in kernel.body for name in names_of(statement)}
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef) and node.name in used and _is_data(node, names):
            base = names.spelt("nki.language", "NKIObject")
            text = source.render(node)
            source.replace(node, re.sub(r"^class (\w+)(\(\))?:", rf"class \1({base}):", text))


def _is_data(node: ast.ClassDef, names: Names) -> bool:
    decorators = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    is_data = any(names.dotted(one) == "dataclasses.dataclass" for one in decorators)
    is_plain = not any(isinstance(one, ast.FunctionDef | ast.ClassDef) for one in node.body)
    return is_data and is_plain and not node.bases and not node.keywords
