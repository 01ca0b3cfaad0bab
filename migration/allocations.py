"""Allocations of older kernels: memory by name, partition dimensions, lists of tiles, constants."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from trnx.migration.calls import WITHOUT_EFFECT, placement, without
from trnx.migration.clearing import Clearing
from trnx.migration.expressions import Expressions
from trnx.migration.names import Names
from trnx.migration.passed_lists import HBM
from trnx.migration.results import bound
from trnx.migration.source import Source
from trnx.migration.uses import Uses
from trnx.migration.views import Tile


class Allocations:
    """Rewrites the allocations of one file."""

    def __init__(self, source: Source, names: Names, expressions: Expressions) -> None:
        self._source = source
        self._names = names
        self._expressions = expressions
        self._uses = Uses(())
        self._clearing = Clearing((), names, expressions)
        self._returned: set[str] = set()

    def begin(self, nodes: Sequence[ast.AST], uses: Uses) -> None:
        """Go on with a function, of which `nodes` are all nodes."""
        self._uses = uses
        self._clearing = Clearing(nodes, self._names, self._expressions)
        for node in nodes:
            if isinstance(node, ast.Return) and node.value is not None:
                self._returned |= {
                    one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)
                }

    def constant(self, name: str, call: ast.Call) -> None:
        """A constant has the dtype of its values since NKI 0.2; what loads it converts."""
        given = next((k.value for k in call.keywords if k.arg == "dtype"), None)
        if given is None:
            return
        if not self._uses.are_within(name, self._is_load):
            self._expressions.note("a shared_constant has the dtype of its values: convert them")
            return
        self._expressions.constants[name] = self._source.render(given)
        self._source.replace(call, without(self._source, call, "dtype"))

    def lines(self, name: str, call: ast.Call, function: str) -> list[str] | None:
        expressions = self._expressions
        expressions.indices.names.pop(name, None)
        given = bound(("shape", "fill_value" if function == "full" else "dtype"), call) or {}
        shape, buffer = given.get("shape"), given.get("buffer")
        expressions.spell(call)
        for part in [*call.args[1:], *(keyword.value for keyword in call.keywords)]:
            if not self._source.is_replaced(part):
                expressions.visit(part)
        memory = buffer.attr if isinstance(buffer, ast.Attribute) else ""
        memory = (buffer is not None and placement(self._names, buffer)) or memory
        self.place_result(name, call)
        expressions.tiles[name] = Tile(is_psum=memory == "psum", is_hbm=memory in HBM)
        sizes, place, has_place = self._sizes(shape)
        gone = self._gone(name, call, sizes, place)
        if not has_place:
            return [f"{name} = {without(self._source, call, *gone)}"] if gone else None
        assert shape is not None
        if memory in HBM or place == 0:
            self._source.replace(shape, f"({', '.join(sizes)})")
            return [f"{name} = {without(self._source, call, *gone)}"] if gone else None
        self._source.replace(shape, f"({', '.join(sizes[place:])})")
        expressions.tiles[name] = Tile(blocks=place, is_psum=memory == "psum")
        return _lists(name, sizes[:place], without(self._source, call, *gone))

    def place_result(self, name: str, call: ast.Call) -> None:
        """Results are in shared HBM since NKI 0.3."""
        for keyword in call.keywords:
            buffer = keyword.value
            memory = buffer.attr if isinstance(buffer, ast.Attribute) else ""
            if keyword.arg == "buffer" and memory in HBM[1:] and name in self._returned:
                self._source.replace(buffer, self._expressions.nl("shared_hbm"))

    def _sizes(self, shape: ast.expr | None) -> tuple[list[str], int, bool]:
        """The sizes of a shape, where its partition dimension stands, and whether it says so."""
        if not isinstance(shape, ast.Tuple | ast.List):
            return [], 0, False
        places = [
            i
            for i, size in enumerate(shape.elts)
            if isinstance(size, ast.Call) and self._names.language(size.func) == "par_dim"
        ]
        sizes = [self._source.render(_size(size)) for size in shape.elts]
        return sizes, places[0] if places else 0, bool(places)

    def _gone(self, name: str, call: ast.Call, sizes: Sequence[str], place: int) -> list[str]:
        """Parameters of an allocation that change no result; one that need not clear its tile is
        an `ndarray` from here on.
        """
        given = {keyword.arg for keyword in call.keywords}
        gone = [parameter for parameter in WITHOUT_EFFECT if parameter in given]
        function = self._names.language(call.func)
        tile = self._expressions.tiles[name]
        is_sum = bool(gone) and tile.is_psum and self._clearing.is_sum_of_products(name)
        is_filled = function == "zeros" or "fill_value" in given
        if function in ("zeros", "full") and (
            is_sum
            or (is_filled and self._clearing.is_reduced_over_loops(name, sizes[place:], place))
        ):
            self._source.replace(call.func, self._expressions.nl("ndarray"))
            gone.append("fill_value")
        return gone

    def _is_load(self, node: ast.AST, name: ast.Name) -> bool:
        if not (isinstance(node, ast.Call) and self._names.language(node.func) == "load"):
            return False
        source = node.args[0] if node.args else None
        return source is name or (isinstance(source, ast.Subscript) and source.value is name)


def _size(node: ast.expr) -> ast.expr:
    return node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else node


def _lists(name: str, blocks: Sequence[str], allocation: str) -> list[str]:
    """Loops that fill lists of lists of tiles."""
    lines = [f"{name} = []"]
    outer, indent = name, ""
    for depth, count in enumerate(blocks):
        lines.append(f"{indent}for _ in range({count}):")
        indent += "    "
        if depth < len(blocks) - 1:
            inner = f"{name}_{depth + 1}"
            lines += [f"{indent}{inner} = []", f"{indent}{outer}.append({inner})"]
            outer = inner
    lines.append(f"{indent}{outer}.append({allocation})")
    return lines
