"""Launch grids of NKI 0.1, which had a program for each tile: since NKI 0.2 a grid is the cores of
a logical core, so the kernel gets a loop over its programs, and `kernel[4, 2](x)` becomes
`kernel(x, launch_grid=(4, 2))`.

Programs of a grid could neither meet nor know an order, so one after another is as good as any.
What all of them share stands before the loop (`grid_bodies.py`). A grid of one axis that no launch
in the file shows to be larger than a logical core stays, and so does a kernel whose body has no
such form, under a comment.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, field

from trnx.migration.grid_bodies import Body, GridBodyError, looped
from trnx.migration.names import Names
from trnx.migration.source import Source, edited
from trnx.migration.uses import names_of

PARAMETER = "launch_grid"
_MAKERS = ("nki.baremetal", "nki.benchmark", "nki.profile", "nki.trace", "nki.jit")
_RUNNERS = ("nki.simulate_kernel", "nki.simulate", *_MAKERS)
_COMMENT = re.compile("#.*")
_ASKS = ("program_id", "num_programs", "program_ndim")


@dataclass(frozen=True)
class WithoutGrids:
    """The text, and for each of its lines the old file's; what stays, and why, by old line."""

    text: str
    lines: tuple[int, ...]
    notes: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class _Launch:
    """`kernel[grid]`, and the call that has the kernel's arguments."""

    kernel: str
    grid: ast.Subscript
    call: ast.Call


@dataclass
class _Kernel:
    """A function that asks for its place in a grid."""

    function: ast.FunctionDef
    asks: list[ast.Call]
    axes: int
    launches: list[_Launch] = field(default_factory=list)


def without_grids(text: str) -> WithoutGrids:
    """Rewrite the launch grids of a file of NKI 0.1. Raises SyntaxError."""
    return _Grids(text).result()


class _Grids:
    def __init__(self, text: str) -> None:
        self._source = Source(text)
        self._names = Names(self._source)
        nodes = list(ast.walk(self._source.tree))
        self._imported = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        self._made = dict(self._maker(node) for node in nodes if self._is_made(node))
        self._defined = Counter(node.name for node in nodes if isinstance(node, ast.FunctionDef))
        self._kernels = {
            node.name: kernel
            for node in nodes
            if isinstance(node, ast.FunctionDef) and (kernel := self._kernel(node)) is not None
        }
        self._launches = [
            launch
            for node in nodes
            if isinstance(node, ast.Call) and (launch := self._launch_of(node)) is not None
        ]
        for launch in self._launches:
            if launch.kernel in self._kernels:
                self._kernels[launch.kernel].launches.append(launch)
        # Start, end, text.
        self._edits: list[tuple[int, int, str]] = []

    def result(self) -> WithoutGrids:
        """The new text."""
        notes: list[tuple[int, str]] = []
        split: set[str] = set()
        for name, kernel in self._kernels.items():
            try:
                if self._names.is_old and self._is_of_tiles(kernel):
                    Body(kernel.function, self._names)
                    self._in_loop(kernel)
                    split.add(name)
            except GridBodyError as error:
                note = f"a launch grid with a program for each tile: loop over the tiles; {error}"
                notes.append((kernel.function.lineno, note))
        for launch in self._launches if self._names.is_old else ():
            is_other = launch.kernel not in self._kernels and self._is_other_kernel(launch)
            if launch.kernel in split or is_other:
                self._call(launch)
            elif self._is_cores(launch):
                cores = _elements(launch.grid.slice)[0]
                self._replace(cores, self._size(cores))
        return self._looped(edited(self._source.text, self._edits), split, tuple(notes))

    # ---- what a file has ----

    def _is_made(self, node: ast.AST) -> bool:
        """True for `run = nki.baremetal(kernel)`, also with options."""
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            return False
        call = node.value
        maker = call.func.func if isinstance(call.func, ast.Call) else call.func
        is_named = isinstance(node.targets[0], ast.Name) and bool(call.args)
        return is_named and self._names.dotted(maker) in _MAKERS

    def _maker(self, node: ast.AST) -> tuple[str, str]:
        assert isinstance(node, ast.Assign)
        assert isinstance(node.value, ast.Call)
        return ast.unparse(node.targets[0]), ast.unparse(node.value.args[0])

    def _kernel(self, function: ast.FunctionDef) -> _Kernel | None:
        asks = [
            node
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and self._names.language(node.func) in _ASKS
        ]
        is_kernel = (
            any(
                self._names.dotted(one.func if isinstance(one, ast.Call) else one) in _MAKERS
                for one in function.decorator_list
            )
            or function.name in self._made.values()
        )
        axes = [_axis(ask) for ask in asks if self._names.language(ask.func) == "program_id"]
        if not (is_kernel and axes):
            return None
        return _Kernel(function, asks, 1 + max(one or 0 for one in axes))

    def _launch_of(self, call: ast.Call) -> _Launch | None:
        """`kernel[grid](...)`, also within `nki.simulate_kernel(...)` and `nki.simulate(...)`."""
        grid: ast.expr = call.func
        if self._names.dotted(call.func) == "nki.simulate_kernel" and call.args:
            grid = call.args[0]
        elif isinstance(grid, ast.Call) and self._names.dotted(grid.func) in _RUNNERS and grid.args:
            grid = grid.args[0]
        if not (isinstance(grid, ast.Subscript) and isinstance(grid.value, ast.Name)):
            return None
        name = grid.value.id
        # `kernel = nki.jit(kernel)` is its own name.
        return _Launch(self._made.get(name, name), grid, call)

    def _is_of_tiles(self, kernel: _Kernel) -> bool:
        """False for a grid that can be the cores of a logical core, as today's are."""
        if kernel.launches:
            kernel.axes = max(kernel.axes, *(self._axes(one) for one in kernel.launches))
            return not all(self._is_cores(one) for one in kernel.launches)
        return kernel.axes > 1

    def _is_other_kernel(self, launch: _Launch) -> bool:
        """True for the launch of another file's kernel with a grid of several axes."""
        index = launch.grid.slice
        is_kernel = launch.kernel in self._imported or launch.kernel in self._made.values()
        return is_kernel and isinstance(index, ast.Tuple) and len(index.elts) > 1

    def _axes(self, launch: _Launch) -> int:
        index = launch.grid.slice
        if isinstance(index, ast.Name):
            return max(self._tuples(index.id), default=1)
        return len(_elements(index))

    def _is_cores(self, launch: _Launch) -> bool:
        """True for the number of a logical core's cores, which is a grid today as well."""
        return self._axes(launch) == 1 and self._size(_elements(launch.grid.slice)[0]) in ("1", "2")

    # ---- what is written ----

    def _replace(self, node: ast.expr, text: str) -> None:
        start, end = self._source.span(node)
        # As many lines as before.
        lines = self._source.text.count("\n", start, end) - text.count("\n")
        padded = f"({text}" + "\n" * lines + ")" if lines > 0 else text
        self._edits.append((start, end, padded))

    def _in_loop(self, kernel: _Kernel) -> None:
        """The parameter of a kernel, and what its programs are told of their grid."""
        if self._defined[kernel.function.name] > 1:
            raise GridBodyError("more functions have its name")
        variables = _variables(kernel)
        _module(kernel)
        edits = []
        for ask in kernel.asks:
            axis = _axis(ask)
            what = self._names.language(ask.func)
            if axis is None and what != "program_ndim":
                raise GridBodyError(f"`{ast.unparse(ask)}` has no axis that is a number")
            texts = {
                "program_id": variables[axis or 0],
                "num_programs": f"{PARAMETER}[{axis}]",
                "program_ndim": f"len({PARAMETER})",
            }
            edits.append((ask, texts[what]))
        place = self._parameter_place(kernel.function)
        ones = f"({', '.join(['1'] * kernel.axes)}{',' * (kernel.axes == 1)})"
        for ask, text in edits:
            self._replace(ask, text)
        self._edits.append((place, place, f", {PARAMETER}={ones}"))

    def _parameter_place(self, function: ast.FunctionDef) -> int:
        """Where another parameter with a default can stand."""
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args]
        defaults = [*arguments.defaults, *(one for one in arguments.kw_defaults if one)]
        named += [arguments.vararg] if arguments.vararg is not None else []
        named += arguments.kwonlyargs
        if not named:
            raise GridBodyError("it has no parameters")
        name_ends = [self._source.span(one)[1] for one in named]
        starts = {end: start for start, end in map(self._source.span, defaults)}
        end = max([*name_ends, *starts])
        if end in name_ends:
            return end
        # `scale=(1.0)`: a default ends behind its brackets.
        between = self._source.text[max(name_ends) : starts[end]]
        for _ in range(between.count("(")):
            end = self._source.text.index(")", end) + 1
        return end

    def _call(self, launch: _Launch) -> None:
        """The call without its grid, which becomes its last argument."""
        text, span = self._source.text, self._source.span
        start, end = span(launch.grid.value)[1], span(launch.grid)[1]
        self._edits.append((start, end, ""))
        place = span(launch.call)[1] - 1
        given: list[ast.expr | ast.keyword] = [*launch.call.args, *launch.call.keywords]
        rest = _COMMENT.sub("", text[span(given[-1])[1] : place]) if given else ","
        comma = "" if "," in rest else ", "
        lines = "\n" * text.count("\n", start, end)
        argument = f"{comma}{PARAMETER}={self._grid(launch.grid.slice)}{lines}"
        self._edits.append((place, place, argument))

    def _grid(self, index: ast.expr) -> str:
        """The sizes of a grid as a tuple."""
        if isinstance(index, ast.Name) and self._tuples(index.id):
            return index.id
        sizes = [self._size(one) for one in _elements(index)]
        return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"

    def _size(self, node: ast.expr) -> str:
        """A size of a grid; `nl.nc(2)` and `nl.spmd_dim(a, b)` said which core takes which part."""
        if isinstance(node, ast.Call) and self._names.language(node.func) == "nc" and node.args:
            return self._size(node.args[0])
        if isinstance(node, ast.Call) and self._names.language(node.func) == "spmd_dim":
            return " * ".join(_factor(self._size(one)) for one in node.args)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return " * ".join(_factor(self._size(one)) for one in (node.left, node.right))
        start, end = self._source.span(node)
        return " ".join(self._source.text[start:end].split())

    def _tuples(self, name: str) -> tuple[int, ...]:
        """How many elements the tuples have that the file gives this name."""
        return tuple(
            len(node.value.elts)
            for node in ast.walk(self._source.tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Tuple)
            and name in [ast.unparse(target) for target in node.targets]
        )

    def _looped(
        self, text: str, split: set[str], notes: tuple[tuple[int, str], ...]
    ) -> WithoutGrids:
        """The text with the loops over programs; the edits before kept each line's number."""
        lines = [(line, number) for number, line in enumerate(text.splitlines(keepends=True), 1)]
        source = Source(text)
        names = Names(source)
        functions = [node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef)]
        for function in sorted(functions, key=lambda one: -one.lineno):
            if function.name in split:
                kernel = self._kernels[function.name]
                heads = [
                    f'assert {_module(kernel)}.num_programs() == 1, "launch with {PARAMETER}=..."',
                    *(
                        f"for {variable} in range({PARAMETER}[{axis}]):"
                        for axis, variable in enumerate(_variables(kernel))
                    ),
                ]
                start, end = function.body[0].lineno - 1, function.end_lineno
                body = Body(function, names, _variables(kernel))
                lines[start:end] = looped(lines, function, body, heads)
        numbers = tuple(number for _, number in lines)
        return WithoutGrids("".join(line for line, _ in lines), numbers, notes)


def _axis(ask: ast.Call) -> int | None:
    """The axis that a kernel asks for; None where it is no number."""
    given = [*ask.args, *(keyword.value for keyword in ask.keywords)]
    if not given:
        return 0
    value = given[0].value if isinstance(given[0], ast.Constant) else None
    return value if type(value) is int and value >= 0 else None


def _module(kernel: _Kernel) -> str:
    """What the kernel writes before `program_id`."""
    function = kernel.asks[0].func
    if not isinstance(function, ast.Attribute):
        raise GridBodyError(f"`{ast.unparse(function)}` stands without its module")
    return ast.unparse(function.value)


def _variables(kernel: _Kernel) -> list[str]:
    """A name for each axis that the kernel has not."""
    taken = names_of(kernel.function)
    suffix = ""
    while any(f"program_{axis}{suffix}" in taken for axis in range(kernel.axes)):
        suffix += "_"
    return [f"program_{axis}{suffix}" for axis in range(kernel.axes)]


def _elements(index: ast.expr) -> list[ast.expr]:
    return list(index.elts) if isinstance(index, ast.Tuple) else [index]


def _factor(text: str) -> str:
    """An expression as a factor of a product."""
    is_plain = text.isidentifier() or text.isdigit() or (text.endswith(")") and text[0] == "(")
    return text if is_plain else f"({text})"
