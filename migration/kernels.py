"""Statements of older kernels: index variables go, results get tiles, block dimensions lists."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from trnx.migration.affine import NotAffineError
from trnx.migration.allocations import Allocations
from trnx.migration.calls import placement, without
from trnx.migration.expressions import Expressions, has_slices
from trnx.migration.loop_reductions import LoopReductions, is_loop_reduce
from trnx.migration.names import Names
from trnx.migration.passed_lists import PassedLists
from trnx.migration.passed_tiles import PassedTiles
from trnx.migration.results import PARAMETERS, RESULTS, Result
from trnx.migration.source import DELETED, Source
from trnx.migration.subscripts import bounded_tile
from trnx.migration.sums import Sums
from trnx.migration.targets import ALLOCATIONS, LIKE, Targets, place_of, target_name
from trnx.migration.uses import Uses, names_of
from trnx.migration.views import Tile

_ANY = Result((), "", "")


class KernelRewriter:
    """Rewrites one function and what is nested in it."""

    def __init__(
        self,
        source: Source,
        names: Names,
        notes: dict[ast.stmt, list[str]],
        passed: PassedLists,
        tiles: PassedTiles,
    ) -> None:
        self._source = source
        self._passed = passed
        self._passed_tiles = tiles
        self._names = names
        self._notes = notes
        self._expressions = Expressions(source, names, tiles)
        # Assignments of index expressions, which are gone.
        self._removed: list[ast.Assign | ast.AnnAssign] = []
        self._uses = Uses(())
        self._targets = Targets(source, names, self._expressions)
        self._sums = Sums(source, names, self._expressions, self._targets)
        self._allocations = Allocations(source, names, self._expressions)
        self._reductions = LoopReductions(source, names, self._expressions)
        # Tiles that nothing has written yet, but under these conditions.
        self._unwritten: dict[str, list[str]] = {}

    def run(self, function: ast.FunctionDef) -> None:
        """Rewrite the body."""
        self._removed, self._unwritten = [], {}
        nodes = tuple(ast.walk(function))
        self._uses = Uses(nodes)
        self._allocations.begin(nodes, self._uses)
        self._expressions.is_host = self._is_host(function)
        for name, blocks in self._passed.parameters(function).items():
            self._expressions.tiles[name] = Tile(blocks)
        for name in self._passed_tiles.parameters(function):
            self._expressions.tiles.setdefault(name, Tile())
        self._body(function.body)
        self._restore_indices(function)

    def _restore_indices(self, function: ast.FunctionDef) -> None:
        """An index that is still read, where nothing could be written for it, stays as it is."""
        for statement in reversed(self._removed):
            text = self._source.render(function).replace(DELETED, "pass")
            try:
                read = {
                    node.id
                    for node in ast.walk(ast.parse(text))
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
                }
            except SyntaxError:
                return
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            bound = {name for target in targets for name in names_of(target)}
            if read & bound and self._source.is_replaced(statement):
                self._source.restore(statement)

    def _is_host(self, function: ast.FunctionDef) -> bool:
        """True where all that is called of NKI's language and ISA is static_cast, as tests do."""
        called = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
        return {self._names.language(one) or self._names.isa(one) for one in called} <= {
            "static_cast", "", None,
        }  # fmt: skip

    def _body(self, body: Sequence[ast.stmt]) -> None:
        deleted = [self._statement(statement) for statement in body]
        if all(deleted):
            self._source.replace(body[0], "pass")

    def _statement(self, statement: ast.stmt) -> bool:
        """Rewrite one; True where it is gone."""
        expressions = self._expressions
        expressions.before, expressions.notes, expressions.conditions = [], [], []
        expressions.is_conditional = _is_conditional(statement)
        gone = False
        if isinstance(statement, ast.For | ast.While | ast.If | ast.With):
            self._header(statement)
            self._finish(statement, None)
            loops = [statement] if isinstance(statement, ast.For) else []
            self._reductions.loops += loops
            before = expressions.indices.state()
            self._body(statement.body)
            after = expressions.indices.state()
            if isinstance(statement, ast.If):
                expressions.indices.restore(before)
            if orelse := getattr(statement, "orelse", []):
                self._body(orelse)
            if isinstance(statement, ast.If):
                expressions.indices.join(after, expressions.indices.state())
            del self._reductions.loops[len(self._reductions.loops) - len(loops) :]
            return False
        if isinstance(statement, ast.FunctionDef):
            if self._uses.are_within(statement.name, self._is_placement):
                self._source.replace(statement, DELETED)
                return True
            self._body(statement.body)
            return False
        lines: list[str] | None = None
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            lines = self._assign(statement)
        elif isinstance(statement, ast.AugAssign):
            lines = self._sums.lines(statement)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            expressions.visit_alone(statement.value)
        elif isinstance(statement, ast.Return | ast.Expr | ast.Assert):
            for child in ast.iter_child_nodes(statement):
                if isinstance(child, ast.expr):
                    expressions.visit(child)
        if expressions.is_conditional:
            self._condition(statement)
        if lines == []:
            self._source.replace(statement, DELETED)
            gone = True
        self._finish(statement, lines)
        return gone

    def _header(self, statement: ast.For | ast.While | ast.If | ast.With) -> None:
        if isinstance(statement, ast.For):
            loop = statement.iter
            if isinstance(loop, ast.Call) and any(k.arg == "directives" for k in loop.keywords):
                self._source.replace(loop, without(self._source, loop, "directives"))
                self._expressions.note("for the order of the loop: `with nl.no_reorder():` in it")
            self._expressions.visit(loop)
        elif isinstance(statement, ast.With):
            for item in statement.items:
                self._expressions.visit(item.context_expr)
        else:
            self._expressions.visit(statement.test)

    def _condition(self, statement: ast.stmt) -> None:
        """What reads tiles that only a condition fills stands under it, too; the tile that a
        statement writes is filled under its conditions alone.
        """
        conditions = self._expressions.conditions
        target = target_name(statement)
        for name in sorted(names_of(statement) - {target}):
            conditions += [one for one in self._unwritten.get(name, ()) if one not in conditions]
        if target in self._unwritten and conditions:
            self._unwritten[target] = list(conditions)
        else:
            self._unwritten.pop(target, None)

    def _finish(self, statement: ast.stmt, lines: list[str] | None) -> None:
        """Put what comes before a statement there, and its notes."""
        expressions = self._expressions
        indent = self._source.indent(statement)
        if expressions.notes:
            self._notes.setdefault(statement, []).extend(expressions.notes)
        if isinstance(statement, ast.For | ast.While | ast.If | ast.With):
            if expressions.before:
                self._notes.setdefault(statement, []).append("a result of its own line")
            return
        if lines is None and (expressions.before or expressions.conditions):
            lines = [self._source.render(statement)]
        if lines:
            text = f"\n{indent}".join([*expressions.before, *lines])
            if expressions.conditions:
                inner = text.replace("\n", "\n    ")
                text = f"if {' and '.join(expressions.conditions)}:\n{indent}    {inner}"
            self._source.replace(statement, text)

    # ---- assignments ----

    def _assign(self, statement: ast.Assign | ast.AnnAssign) -> list[str] | None:
        """The lines for `target = value`; [] where it goes, None where its text stays."""
        value = statement.value
        assert value is not None
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        target = targets[0]
        expressions, indices = self._expressions, self._expressions.indices
        if len(targets) == 1 and self._index(target, value):
            self._removed.append(statement)
            return []
        if len(targets) == 1 and self._view(target, value):
            return []
        if not isinstance(target, ast.Name | ast.Subscript) or len(targets) > 1:
            expressions.visit(value)
            for part in targets:
                if isinstance(part, ast.Tuple):
                    made = self._passed_tiles.unpacked(part, value)
                    expressions.tiles |= {name: Tile() for name in made}
            return None
        if isinstance(value, ast.Call) and (lines := self._made(target, value)) is not None:
            return lines
        if isinstance(target, ast.Name):
            is_identity = isinstance(value, ast.Call) and (
                self._names.language(value.func) == "shared_identity_matrix"
            )
            (expressions.identities.add if is_identity else expressions.identities.discard)(
                target.id
            )
        is_tile = expressions.visit(value)
        if isinstance(target, ast.Name):
            is_flag = isinstance(value, ast.Compare | ast.BoolOp) and not is_tile
            (expressions.flags.add if is_flag else expressions.flags.discard)(target.id)
        if isinstance(target, ast.Subscript):
            expressions.visit(target)
            self._targets.assignable(target)
            self._targets.into_block(target, value)
            return None
        indices.names.pop(target.id, None)
        indices.masks.pop(target.id, None)
        before = expressions.tiles.pop(target.id, None)
        if isinstance(value, ast.Call) and self._names.language(value.func) in LIKE:
            self._allocations.place_result(target.id, value)
        if isinstance(value, ast.Call) and self._names.language(value.func) in ALLOCATIONS:
            expressions.tiles[target.id] = before or Tile()
        elif blocks := self._passed.of_result(value):
            expressions.tiles[target.id] = Tile(blocks)
        elif is_tile:
            is_view = isinstance(value, ast.Subscript)
            blocks = 0
            if isinstance(value, ast.Name):
                blocks = expressions.tiles.get(value.id, Tile()).blocks
            expressions.tiles[target.id] = Tile(blocks, is_whole=not is_view)
        return None

    def _index(self, target: ast.expr, value: ast.expr) -> bool:
        """Take up the name of an index expression."""
        indices = self._expressions.indices
        if not indices.has_index(value):
            return False
        try:
            grid = indices.grid(value)
            if grid is not None and isinstance(target, ast.Tuple):
                for name, axis in zip(target.elts, grid, strict=True):
                    if isinstance(name, ast.Name):
                        indices.names[name.id] = axis
                return True
            if grid is not None and isinstance(target, ast.Name):
                indices.grids[target.id] = grid
                return True
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                names = [one.id for one in target.elts if isinstance(one, ast.Name)]
                are_indices = all(map(indices.has_index, value.elts))
                if are_indices and len(names) == len(target.elts) == len(value.elts):
                    read = [indices.read(one) for one in value.elts]
                    indices.names.update(zip(names, read, strict=True))
                    return True
            if isinstance(target, ast.Name) and not _calls_besides(value, indices.has_index):
                if isinstance(value, ast.Compare | ast.BoolOp) or _joins_masks(value):
                    indices.masks[target.id] = indices.comparisons(value)
                else:
                    indices.names[target.id] = indices.read(value)
                return True
        except NotAffineError:
            return False
        return False

    def _view(self, target: ast.expr, value: ast.expr) -> bool:
        """Take up the name of a view that masked loads and stores alone use."""
        expressions = self._expressions
        if not (isinstance(target, ast.Name) and isinstance(value, ast.Subscript)):
            return False
        is_indexed = expressions.indices.has_index(value.slice)
        is_fixed = all(self._uses.is_fixed(n) for n in names_of(value)) and self._uses.is_fixed(
            target.id
        )
        if not is_indexed or not is_fixed:
            return False
        if not self._uses.are_within(target.id, self._is_masked_access):
            return False
        expressions.views[target.id] = value
        return True

    def _is_masked_access(self, node: ast.AST, name: ast.Name) -> bool:
        return (
            isinstance(node, ast.Call)
            and self._names.language(node.func) in ("load", "store")
            and node.args[:1] == [name]
            and any(keyword.arg == "mask" for keyword in node.keywords)
        )

    def _is_placement(self, node: ast.AST, _: ast.Name) -> bool:
        """True for `nki.compiler.sbuf.alloc(...)` and its like."""
        return isinstance(node, ast.Call) and bool(placement(self._names, node))

    def _made(self, target: ast.Name | ast.Subscript, call: ast.Call) -> list[str] | None:
        """The lines where the value is a call that needs its target; None for any other."""
        isa, language = self._names.isa(call.func), self._names.language(call.func)
        expressions = self._expressions
        has_dst = any(keyword.arg == "dst" for keyword in call.keywords)
        if language in ALLOCATIONS and isinstance(target, ast.Name):
            if language == "ndarray":
                self._unwritten[target.id] = []
            return self._allocations.lines(target.id, call, language)
        if language == "shared_constant" and isinstance(target, ast.Name):
            self._allocations.constant(target.id, call)
            return None
        if is_loop_reduce(call, self._names):
            dst = (
                target.id if isinstance(target, ast.Name) else place_of(self._targets.text(target))
            )
            return self._reductions.lines(call, dst, declares=isinstance(target, ast.Name))
        has_mask = any(keyword.arg == "mask" for keyword in call.keywords)
        is_masked = has_mask and language == "load"
        is_update = has_mask and bool(language) and isinstance(target, ast.Subscript)
        if not (isa in PARAMETERS and not has_dst) and not is_masked and not is_update:
            return None
        bounds = expressions.masked(call)
        if bounds is None:
            return None  # the mask stays, under its comment
        with expressions.bounded(bounds):
            if isinstance(target, ast.Name):
                # A tile that the call reads is there until it has been read.
                is_read = target.id in names_of(call)
                dst = expressions.fresh() if is_read else target.id
                lines = (
                    expressions.masked_load(call, dst)
                    if is_masked
                    else expressions.instruction(call, dst, declares=True)
                )
                if is_read and lines:
                    lines.append(f"{target.id} = {dst}")
                is_psum = RESULTS.get(isa, _ANY).buffer == "psum"
                expressions.tiles[target.id] = Tile(is_psum=is_psum)
                expressions.indices.names.pop(target.id, None)
                return lines or None
            dst = self._targets.text(target)
            if is_masked:
                expressions.visit(call.args[0])
                src = self._source.render(call.args[0])
                copy = self._names.spelt("nki.isa", "dma_copy")
                return [f"{copy}(dst={dst}, src={src})"]
            if is_update:
                return [f"{place_of(dst)} = {self._cut(call)}"]
            if RESULTS.get(isa, _ANY).buffer == "psum" and not self._targets.is_psum(target):
                product = expressions.fresh()
                lines = expressions.instruction(call, product, declares=True)
                place = f"{dst}[...]" if self._targets.is_block(target) else place_of(dst)
                return None if lines is None else [*lines, f"{place} = {product}"]
            return expressions.instruction(call, dst, declares=False)

    def _cut(self, call: ast.Call) -> str:
        """A function of nki.language on the parts of tiles that its mask lets through."""
        expressions = self._expressions
        for argument in call.args:
            if isinstance(argument, ast.Name) and argument.id in expressions.tiles:
                self._source.replace(argument, bounded_tile(argument.id, expressions.bounds))
            elif expressions.visit(argument) and self._is_uncut(argument):
                text = bounded_tile(self._source.render(argument), expressions.bounds)
                self._source.replace(argument, text)
        expressions.spell(call)
        return without(self._source, call, "mask")

    def _is_uncut(self, value: ast.expr) -> bool:
        """True for a new tile that is made from whole tiles: no mask has cut what it reads."""
        views = (node for node in ast.walk(value) if isinstance(node, ast.Subscript))
        has_views = any(has_slices(node) for node in views)
        is_made = isinstance(value, ast.Call | ast.BinOp | ast.UnaryOp)
        return is_made and not has_views and not self._expressions.indices.has_index(value)


def _is_conditional(statement: ast.stmt) -> bool:
    """True for a statement that makes no new name: what it writes is there without it, too."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Subscript) for target in statement.targets)
    return isinstance(statement, ast.AugAssign | ast.Expr)


def _joins_masks(value: ast.expr) -> bool:
    """True for `mask & mask`."""
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitAnd)


def _calls_besides(value: ast.expr, has_index: object) -> bool:
    """True where an arange stands within a call, which makes a tile of it."""
    assert callable(has_index)
    return any(
        isinstance(node, ast.Call)
        and any(has_index(argument) for argument in [*node.args, *(k.value for k in node.keywords)])
        for node in ast.walk(value)
    )
