"""The function that runs a plan on buckets, generated once for buckets of all sizes.

It has two forms of a value, made where a step first asks for them: the padded one, which padded
regions read and write, and the exact one, for everything else. What buckets differ in are numbers,
which the function takes, and steps (kernels, what pads and cuts), which are its globals.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

from torch import fx

from trnx.backend.buckets.conversions import Cutter, Parts, fill_padding, padder, places
from trnx.backend.buckets.exact_kernels import ExactKernels
from trnx.backend.buckets.numbers import Numbers
from trnx.backend.kernel_call import KernelCall, values_read
from trnx.backend.shapes import Number, Symbols, SymbolSource, concrete, concrete_spec
from trnx.backend.specialisation import KernelFactory, fallback_step, named
from trnx.fx_passes.assertions import asserted_numbers
from trnx.fx_passes.nodes import has_tensor, placeholders
from trnx.fx_passes.numbers import region_symbols
from trnx.fx_passes.padding import PaddedPlan, PaddedRegion
from trnx.fx_passes.padding.layouts import Axis, Layout, Size
from trnx.fx_passes.region import Plan, Region, RegionFunction
from trnx.fx_passes.symbolic import is_symbolic

Step = Callable[..., Any]
# Makes a step for buckets of these sizes, whose kernels are known by their regions' names.
MakeStep = Callable[[Symbols, Mapping[str, KernelCall]], Step]


class BucketFunction:
    """`regions` are those with one kernel for all sizes of a set of buckets; `numbers` what
    every call has to know of its exact sizes."""

    def __init__(
        self,
        plan: Plan,
        padded: PaddedPlan,
        sources: tuple[SymbolSource, ...],
        make_kernel: KernelFactory,
        fallbacks: Mapping[str, RegionFunction],
    ) -> None:
        self.regions = [region for region in plan.regions if _is_of_the_buckets(region, padded)]
        names = frozenset(region.name for region in self.regions)
        generator = _Generator(plan, padded, sources, names, make_kernel, fallbacks)
        self.module = generator.run()
        self.numbers = generator.numbers
        self._sizes = generator.sizes
        self._makers = generator.makers

    def bound(
        self, symbols: Symbols, kernels: Mapping[str, KernelCall]
    ) -> tuple[MethodType, tuple[Number, ...]]:
        """The function for buckets of these sizes, and the numbers to call it with. It takes a
        frame, the list of the graph's inputs, the exact numbers of the call, and those numbers.
        Raises CannotPadError, UnknownSizeError.
        """
        forward: Any = type(self.module).forward
        sizes = self._sizes.evaluate(symbols)
        steps = {
            name: named(one.__name__, self._makers[one](symbols, kernels))
            for name, one in forward.__globals__.items()
            if isinstance(one, FunctionType) and one in self._makers
        }
        function = FunctionType(forward.__code__, {**forward.__globals__, **steps})
        return MethodType(function, self.module), sizes


def _is_of_the_buckets(region: Region, padded: PaddedPlan) -> bool:
    """True for an NKI region whose kernel serves all sizes of the buckets: it is padded, or no
    padded size enters it."""
    if region.match is None:
        return False
    return region.name in padded.regions or not padded.padded.among(region_symbols(region))


class _Generator:
    """Writes `forward(frame, args, numbers, sizes)`: `numbers` of the call, `sizes` of the buckets.

    `makers` are by the functions that stand for their steps in what is written.
    """

    def __init__(
        self,
        plan: Plan,
        padded: PaddedPlan,
        sources: tuple[SymbolSource, ...],
        prepared: frozenset[str],
        make_kernel: KernelFactory,
        fallbacks: Mapping[str, RegionFunction],
    ) -> None:
        self._plan = plan
        self._padding = padded
        self._prepared = prepared
        self._make_kernel = make_kernel
        self._fallbacks = fallbacks
        self._asserted = asserted_numbers(plan.graph_module.graph)
        self.makers: dict[Step, MakeStep] = {}
        self.numbers, self.sizes = Numbers(), Numbers()
        # The symbols come first, so that exact kernels find them.
        self._sources = [source.symbol for source in sources]
        for symbol in self._sources:
            self.numbers.place(symbol)
        self._graph = fx.Graph()
        self._frame, self._args, self._call, self._buckets = map(
            self._graph.placeholder, ("frame", "args", "numbers", "sizes")
        )
        self._exact: dict[fx.Node, Any] = {}
        self._padded: dict[fx.Node, Any] = {}
        self._renewed: dict[tuple[fx.Node, Layout], Any] = {}
        self._placed: dict[tuple[fx.Node, Layout, Size, int], Any] = {}
        self._read: dict[str, fx.Node] = {}

    def run(self) -> fx.GraphModule:
        """The generated module."""
        graph, gm = self._graph, self._plan.graph_module
        for index, node in enumerate(placeholders(gm)):
            if not self._is_number(node):
                self._exact[node] = self._emit(operator.getitem, self._args, index, name=node.name)
        graph.call_method("clear", (self._args,))
        for node in gm.graph.nodes:
            if node.op == "get_attr":
                self._exact[node] = graph.node_copy(node)
        for step in self._plan.steps:
            if not isinstance(step, Region):
                self._glue(step)
            elif step.name in self._padding.regions:
                self._padded_region(step, self._padding.regions[step.name])
            else:
                self._exact_region(step)
        outputs = list(gm.graph.output_node().args[0])  # type: ignore[arg-type]
        graph.output(fx.node.map_aggregate(outputs, self._exact_argument))
        return fx.GraphModule(gm, graph, class_name="BucketSpecialisation")

    def _emit(self, function: Step, *args: Any, name: str) -> fx.Node:
        return self._graph.create_node("call_function", function, args, name=name)

    def _step(self, name: str, make: MakeStep) -> Step:
        """What stands for the step that `make` makes."""
        found = named(name, make)
        self.makers[found] = make
        return found

    # ---- numbers

    def _is_number(self, node: fx.Node) -> bool:
        """A number that the inputs' sizes determine."""
        value = node.meta.get("val")
        if node in self._asserted or not is_symbolic(value):
            return False
        return Numbers.is_known(value, self._sources)

    def _number(self, value: Any) -> fx.Node:
        """The exact value of a symbolic number."""
        return self._number_at(self._call, self.numbers.place(value), "number")

    def _padded_number(self, value: Any) -> fx.Node:
        """The value of a symbolic number for the sizes of the buckets."""
        return self._number_at(self._buckets, self.sizes.place(value), "size")

    def _number_at(self, numbers: fx.Node, place: int, what: str) -> fx.Node:
        name = f"{what}_{place}"
        if name not in self._read:
            with self._graph.inserting_after(self._buckets):
                self._read[name] = self._emit(operator.getitem, numbers, place, name=name)
        return self._read[name]

    def _exact_argument(self, item: Any) -> Any:
        if isinstance(item, fx.Node):
            return self._exact_value(item)
        return self._number(item) if is_symbolic(item) else item

    def _padded_argument(self, item: Any) -> Any:
        if isinstance(item, fx.Node):
            return self._padded_value(item)
        return self._padded_number(item) if is_symbolic(item) else item

    # ---- the two forms of a value

    def _exact_value(self, node: fx.Node) -> Any:
        if node not in self._exact:
            if self._is_number(node):
                return self._number(node.meta["val"])
            made = self._padded[node]
            if self._padding.padded.enter_tensor(node.meta["val"]):
                cut = self._step(f"cut_{node.name}", self._cutter(node))
                made = self._emit(cut, made, self._call, name=f"{node.name}_exact")
            self._exact[node] = made
        return self._exact[node]

    def _padded_value(self, node: fx.Node) -> Any:
        if node not in self._padded:
            if self._is_number(node):
                return self._padded_number(node.meta["val"])
            self._padded[node] = self._pad(node)
        return self._padded[node]

    def _pad(self, node: fx.Node, layout: Layout = (), made: Any = None) -> Any:
        """The exact value, or what is `made` of it, padded at the end of its dimensions or to a
        layout."""
        made = self._exact_value(node) if made is None else made
        if not self._padding.padded.enter_tensor(node.meta.get("val")):
            return made
        first = {dim: axis[0] for dim, axis in self._parts(layout).items()}
        fill = next((axis.fill for axis in layout if axis.fill is not None), 0)

        def make(symbols: Symbols, _: Mapping[str, KernelCall]) -> Step:
            spec = concrete_spec(node.meta["val"], symbols)
            return padder(spec, {dim: part.of(symbols) for dim, part in first.items()}, fill)

        pad = self._step(f"pad_{node.name}", make)
        numbers = (self._call,) if first else ()
        return self._emit(pad, made, *numbers, name=f"{node.name}_padded")

    def _placed_value(self, node: fx.Node, layout: Layout, size: Size, dim: int) -> Any:
        """An index whose values are places of the exact size."""
        key = (node, layout, size, dim)
        if key not in self._placed:
            exact, place = self._exact_value(node), self.numbers.place(size.form)
            made = self._emit(places, exact, self._call, place, dim, name=f"{node.name}_places")
            self._placed[key] = self._pad(node, layout, made)
        return self._placed[key]

    def _renewed_value(self, node: fx.Node, layout: Layout) -> Any:
        """Padded once for all regions that ask for this layout, as layers do of one mask."""
        key = (node, layout)
        if key not in self._renewed:
            self._renewed[key] = self._pad(node, layout)
        return self._renewed[key]

    def _cutter(self, node: fx.Node) -> MakeStep:
        value, layout = node.meta["val"], self._padding.layouts[node]
        exact = [[self.numbers.place(_form(size)) for size in axis.sizes] for axis in layout]
        shape = [self.numbers.place(size) for size in value.shape]
        strides = [self.numbers.place(step) for step in value.stride()]
        parts = self._parts(layout)

        def make(symbols: Symbols, _: Mapping[str, KernelCall]) -> Step:
            sizes = [[_size(one, symbols) for one in axis.sizes] for axis in layout]
            found = {
                dim: {place: part.of(symbols) for place, part in axis.items()}
                for dim, axis in parts.items()
            }
            return Cutter(sizes, exact, shape, strides, found)

        return make

    def _parts(self, layout: Layout) -> dict[int, dict[int, _Parts]]:
        """The parts of sizes that have some, by dimension and place in it."""
        return {dim: found for dim, axis in enumerate(layout) if (found := self._parts_of(axis))}

    def _parts_of(self, axis: Axis) -> dict[int, _Parts]:
        return {
            place: _Parts(size, tuple(self.numbers.place(_form(part)) for part in size.parts))
            for place, size in enumerate(axis.sizes)
            if isinstance(size, Size) and size.parts
        }

    # ---- steps

    def _glue(self, node: fx.Node) -> None:
        if self._is_number(node):
            return
        is_padded = node in self._padding.layouts
        argument = self._padded_argument if is_padded else self._exact_argument
        args = fx.node.map_aggregate(node.args, argument)
        kwargs = fx.node.map_aggregate(node.kwargs, argument)
        values = self._padded if is_padded else self._exact
        values[node] = self._graph.create_node(node.op, node.target, args, kwargs, name=node.name)

    def _padded_region(self, region: Region, padding: PaddedRegion) -> None:
        values = [self._input(node, padding) for node in values_read(region)]
        result = self._emit(self._kernel(region), self._frame, *values, name=region.name)
        self._results(region, result, self._padded)

    def _kernel(self, region: Region) -> Step:
        return self._step(region.name, lambda _, kernels: kernels[region.name])

    def _input(self, node: fx.Node, padding: PaddedRegion) -> Any:
        if not has_tensor(node):
            return self._padded_value(node)
        if node in padding.placed:
            return self._placed_value(node, padding.renewed.get(node, ()), *padding.placed[node])
        if node in padding.renewed:
            return self._renewed_value(node, padding.renewed[node])
        made = self._padded_value(node)
        if node not in padding.filled:
            return made
        sizes = self._padding.layouts[node]
        fills = tuple(
            (dim, self.numbers.place(_form(sizes[dim].sizes[0])), fill)
            for dim, fill in padding.filled[node]
        )
        return self._emit(fill_padding, made, self._call, fills, name=f"{node.name}_filled")

    def _exact_region(self, region: Region) -> None:
        if region.match is None:
            step = named(region.name, fallback_step(self._fallbacks[region.name]))
            values = [self._exact_value(node) for node in region.inputs]
        else:
            is_prepared = region.name in self._prepared
            step = self._kernel(region) if is_prepared else self._exact_kernels(region)
            first = self._frame if is_prepared else self._call
            values = [first, *map(self._exact_value, values_read(region))]
        self._results(region, self._emit(step, *values, name=region.name), self._exact)

    def _exact_kernels(self, region: Region) -> Step:
        make = self._make_kernel
        return self._step(region.name, lambda *_: ExactKernels(region, self._sources, make))

    def _results(self, region: Region, result: fx.Node, values: dict[fx.Node, Any]) -> None:
        for index, node in enumerate(region.outputs):
            values[node] = self._emit(operator.getitem, result, index, name=node.name)


class _Parts:
    """The parts of a size; `exact` is where the numbers of a call have their sizes."""

    def __init__(self, size: Size, exact: tuple[int, ...]) -> None:
        self._size = size
        self._exact = exact

    def of(self, symbols: Symbols) -> Parts:
        """With their padded sizes."""
        return tuple(_size(part, symbols) for part in self._size.parts), self._exact


def _form(size: int | Size) -> Any:
    return size if isinstance(size, int) else size.form


def _size(size: int | Size, symbols: Symbols) -> int:
    return int(concrete(_form(size), symbols))
