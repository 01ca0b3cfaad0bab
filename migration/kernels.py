"""Statements of older kernels: index variables go, results get tiles, block dimensions lists."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from trnx.migration.affine import NotAffineError, operand
from trnx.migration.calls import WITHOUT_EFFECT, arithmetic, placement, without
from trnx.migration.clearing import Clearing
from trnx.migration.expressions import Expressions
from trnx.migration.loop_reductions import LoopReductions, is_loop_reduce
from trnx.migration.names import Names
from trnx.migration.passed_lists import HBM, PassedLists
from trnx.migration.passed_tiles import PassedTiles
from trnx.migration.results import PARAMETERS, RESULTS, Result, bound
from trnx.migration.source import DELETED, Source
from trnx.migration.subscripts import bounded_tile
from trnx.migration.uses import Uses, names_of
from trnx.migration.views import Tile
from trnx.simulator.older_dialects import changed_name

_ANY = Result((), "", "")
_ALLOCATIONS = ("ndarray", "zeros", "ones", "full")
_LIKE = ("empty_like", "zeros_like")
_WITHOUT_DTYPE = ("matmul", "expand_dims", "shared_constant", *_LIKE, *_ALLOCATIONS)
_OF_PRODUCTS = (
    "is_stationary_onezero", "is_moving_onezero", "is_transpose", "tile_position", "tile_size",
    "perf_mode",
)  # fmt: skip


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
        self._returned: set[str] = set()
        # Assignments of index expressions, which are gone.
        self._removed: list[ast.Assign | ast.AnnAssign] = []
        self._uses = Uses(())
        self._clearing = Clearing((), names, self._expressions)
        self._reductions = LoopReductions(source, names, self._expressions)
        # Tiles that nothing has written yet, but under these conditions.
        self._unwritten: dict[str, list[str]] = {}

    def run(self, function: ast.FunctionDef) -> None:
        """Rewrite the body."""
        self._removed, self._unwritten = [], {}
        nodes = tuple(ast.walk(function))
        self._uses = Uses(nodes)
        self._clearing = Clearing(nodes, self._names, self._expressions)
        self._expressions.is_host = self._is_host(function)
        for name, blocks in self._passed.parameters(function).items():
            self._expressions.tiles[name] = Tile(blocks)
        for name in self._passed_tiles.parameters(function):
            self._expressions.tiles.setdefault(name, Tile())
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                self._returned |= {
                    one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)
                }
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
            lines = self._augmented(statement)
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
        target = _target_name(statement)
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
            self._assignable(target)
            self._into_block(target, value)
            return None
        indices.names.pop(target.id, None)
        indices.masks.pop(target.id, None)
        before = expressions.tiles.pop(target.id, None)
        if isinstance(value, ast.Call) and self._names.language(value.func) in _LIKE:
            self._place_result(target.id, value)
        if isinstance(value, ast.Call) and self._names.language(value.func) in _ALLOCATIONS:
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
        if language in _ALLOCATIONS and isinstance(target, ast.Name):
            return self._allocation(target.id, call, language)
        if language == "shared_constant" and isinstance(target, ast.Name):
            self._constant(target.id, call)
            return None
        if is_loop_reduce(call, self._names):
            dst = target.id if isinstance(target, ast.Name) else _place(self._target(target))
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
            dst = self._target(target)
            if is_masked:
                expressions.visit(call.args[0])
                src = self._source.render(call.args[0])
                copy = self._names.spelt("nki.isa", "dma_copy")
                return [f"{copy}(dst={dst}, src={src})"]
            if is_update:
                return [f"{_place(dst)} = {self._cut(call)}"]
            if RESULTS.get(isa, _ANY).buffer == "psum" and not self._is_psum(target):
                product = expressions.fresh()
                lines = expressions.instruction(call, product, declares=True)
                place = f"{dst}[...]" if self._is_block(target) else _place(dst)
                return None if lines is None else [*lines, f"{place} = {product}"]
            return expressions.instruction(call, dst, declares=False)

    def _is_psum(self, target: ast.Subscript) -> bool:
        name = target.value.id if isinstance(target.value, ast.Name) else ""
        return self._expressions.tiles.get(name, Tile()).is_psum

    def _assignable(self, target: ast.Subscript) -> None:
        text = self._source.render(target)
        if _place(text) != text:
            self._source.replace(target, _place(text))

    def _into_block(self, target: ast.Subscript, value: ast.expr) -> None:
        """`tiles[i] = value` wrote into a tile of one dtype; of a list it would replace the tile.
        What a function of nki.language makes is nobody else's, so that its dtype is enough.
        """
        if not self._is_block(target):
            return
        place, text = self._source.render(target), self._source.render(value)
        called = ast.parse(text.strip(), mode="eval").body
        name = self._names.language(called.func) if isinstance(called, ast.Call) else ""
        if changed_name("nki.language", name) is not None:
            return
        if not isinstance(called, ast.Call) or name in ("", *_WITHOUT_DTYPE):
            self._source.replace(target, f"{place}[...]")
        elif "dtype" not in {keyword.arg for keyword in called.keywords}:
            start = text.rstrip().removesuffix(")").rstrip().removesuffix(",")
            self._source.replace(value, f"{start}, dtype={place}.dtype)")

    def _cut(self, call: ast.Call) -> str:
        """A function of nki.language on the parts of tiles that its mask lets through."""
        expressions = self._expressions
        for argument in call.args:
            if isinstance(argument, ast.Name) and argument.id in expressions.tiles:
                self._source.replace(argument, bounded_tile(argument.id, expressions.bounds))
            else:
                expressions.visit(argument)
        expressions.spell(call)
        return without(self._source, call, "mask")

    def _target(self, target: ast.Subscript) -> str:
        """The text of `t[...]` as a destination."""
        expressions = self._expressions
        if isinstance(target.slice, ast.Constant) and target.slice.value is ...:
            return bounded_tile(self._source.render(target.value), expressions.bounds)
        expressions.visit(target)
        text = self._source.render(target)
        # A whole tile of a list.
        return bounded_tile(text, expressions.bounds) if self._is_block(target) else text

    def _is_block(self, target: ast.Subscript) -> bool:
        """True for `tiles[i]` of a list of tiles."""
        tile = self._expressions.tiles.get(ast.unparse(target.value), Tile())
        parts = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        return 0 < tile.blocks == len(parts)

    def _augmented(self, statement: ast.AugAssign) -> list[str] | None:
        """`x += y` on tiles; products accumulate in PSUM."""
        expressions, value, target = self._expressions, statement.value, statement.target
        if isinstance(statement.op, ast.Add) and isinstance(target, ast.Name | ast.Subscript):
            accumulated = self._accumulated(target, value)
            if accumulated is not None:
                return [accumulated]
        is_tile = expressions.visit(value)
        name = arithmetic(statement.op)
        if isinstance(target, ast.Name):
            if target.id in expressions.tiles and name:
                text = f"{expressions.nl(name)}({', '.join(expressions.operands((target, value)))})"
                return [f"{target.id}[...] = {text}"]
            return None
        if isinstance(target, ast.Subscript) and (is_tile or expressions.visit(target)) and name:
            if not self._source.is_replaced(target):
                expressions.visit(target)
            place = _place(self._source.render(target))
            added = expressions.operands((target, value))[1]
            return [f"{place} = {expressions.nl(name)}({place}, {added})"]
        return None

    def _accumulated(self, target: ast.Name | ast.Subscript, value: ast.expr) -> str | None:
        """The product that is added to `target`; None where `value` is none. Its mask cuts the
        target, too.
        """
        if not isinstance(value, ast.Call):
            return None
        with self._expressions.bounded(self._expressions.masked(value) or {}):
            name = _target_name(ast.AugAssign(target, ast.Add(), value))
            is_psum = self._expressions.tiles.get(name, Tile()).is_psum
            product = self._product(value, may_turn=is_psum)
            if product is None:
                return None
            dst = target.id if isinstance(target, ast.Name) else self._target(target)
            return f"{self._names.spelt('nki.isa', 'nc_matmul')}({dst}, {product})"

    def _product(self, value: ast.Call, may_turn: bool) -> str | None:
        """`stationary, moving` of a product that accumulates; None for anything else. `may_turn`:
        what nl.matmul transposes is transposed before the statement.
        """
        is_turned = True
        if self._names.isa(value.func) == "nc_matmul":
            given = bound(("stationary", "moving"), value) or {}
            operands = [given.get("stationary"), given.get("moving")]
        elif self._names.language(value.func) == "matmul":
            given = bound(("x", "y"), value) or {}
            turned = given.get("transpose_x")
            is_turned = isinstance(turned, ast.Constant) and turned.value is True
            if not is_turned and (turned is not None or not may_turn):
                return None
            operands = [given.get("x"), given.get("y")]
        else:
            return None
        texts = []
        for one in operands:
            if one is None:
                return None
            self._expressions.visit(one)
            self._expressions.move_to_sbuf(one)
            texts.append(self._source.render(one))
        if not is_turned:
            texts[0] = self._transposed(texts[0])
        self._expressions.spell(value)
        rest = [k for k in value.keywords if k.arg in _OF_PRODUCTS]
        return ", ".join([*texts, *(self._source.render(keyword) for keyword in rest)])

    def _transposed(self, tile: str) -> str:
        """The transpose of a tile in SBUF, made before the statement."""
        expressions, tile = self._expressions, operand(tile)
        psum, sbuf = expressions.fresh(), expressions.fresh()
        shape = f"({tile}.shape[1], {tile}.shape[0])"
        buffer = f"buffer={expressions.nl('psum')}"
        expressions.before += [
            f"{psum} = {expressions.nl('ndarray')}({shape}, dtype={tile}.dtype, {buffer})",
            f"{self._names.spelt('nki.isa', 'nc_transpose')}({psum}, {tile})",
            f"{sbuf} = {expressions.nl('copy')}({psum})",
        ]
        return sbuf

    # ---- allocation ----

    def _constant(self, name: str, call: ast.Call) -> None:
        """A constant has the dtype of its values since NKI 0.2; what loads it converts."""
        given = next((k.value for k in call.keywords if k.arg == "dtype"), None)
        if given is None:
            return
        if not self._uses.are_within(name, self._is_load):
            self._expressions.note("a shared_constant has the dtype of its values: convert them")
            return
        self._expressions.constants[name] = self._source.render(given)
        self._source.replace(call, without(self._source, call, "dtype"))

    def _is_load(self, node: ast.AST, name: ast.Name) -> bool:
        if not (isinstance(node, ast.Call) and self._names.language(node.func) == "load"):
            return False
        source = node.args[0] if node.args else None
        return source is name or (isinstance(source, ast.Subscript) and source.value is name)

    def _allocation(self, name: str, call: ast.Call, function: str) -> list[str] | None:
        expressions = self._expressions
        expressions.indices.names.pop(name, None)
        given = bound(("shape", "fill_value" if function == "full" else "dtype"), call) or {}
        if function == "ndarray":
            self._unwritten[name] = []
        shape, buffer = given.get("shape"), given.get("buffer")
        expressions.spell(call)
        for part in [*call.args[1:], *(keyword.value for keyword in call.keywords)]:
            if not self._source.is_replaced(part):
                expressions.visit(part)
        memory = buffer.attr if isinstance(buffer, ast.Attribute) else ""
        memory = (buffer is not None and placement(self._names, buffer)) or memory
        self._place_result(name, call)
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

    def _place_result(self, name: str, call: ast.Call) -> None:
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


def _is_conditional(statement: ast.stmt) -> bool:
    """True for a statement that makes no new name: what it writes is there without it, too."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Subscript) for target in statement.targets)
    return isinstance(statement, ast.AugAssign | ast.Expr)


def _target_name(statement: ast.stmt) -> str:
    """The name of the tile that an assignment writes, or ""."""
    target: ast.AST | None = None
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
    while isinstance(target, ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def _place(text: str) -> str:
    """A view as the target of `=`: Python assigns to subscripts, not to calls of `.ap`."""
    return f"{text}[...]" if text.endswith(")") else text


def _size(node: ast.expr) -> ast.expr:
    return node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else node


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
