"""A plan for one set of buckets: padded regions prepared once for all sizes of these buckets.

The generated function has two forms of a value, made where a step first asks for them: the padded
one, which padded regions read and write, and the exact one, for everything else. NKI regions that
must see exact sizes are prepared for those of a call, and kept; those that no padded size enters
serve all calls.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from trnx.backend.buckets.conversions import Cutter, Parts, fill_padding, padder, places
from trnx.backend.buckets.numbers import Numbers
from trnx.backend.inputs import Inputs, InputSpecs
from trnx.backend.kernel_call import KernelCall, Place
from trnx.backend.shapes import Number, Symbols, SymbolSource, concrete, concrete_spec
from trnx.backend.specialisation import (
    KernelFactory,
    PreparedPlan,
    fallback_step,
    named,
)
from trnx.fx_passes.assertions import asserted_numbers
from trnx.fx_passes.nodes import has_tensor, placeholders
from trnx.fx_passes.numbers import region_symbols
from trnx.fx_passes.padding import PaddedPlan, PaddedRegion
from trnx.fx_passes.padding.layouts import Axis, Layout, Size
from trnx.fx_passes.region import Plan, Region, RegionFunction
from trnx.fx_passes.symbolic import is_symbolic
from trnx.simulator.lru_cache import LruCache

# Sets of exact sizes that a specialisation remembers, each with some numbers and specs.
KNOWN_SIZES = 256
# Of a region that must see exact sizes.
EXACT_KERNELS = 32


class BucketSpecialisation(PreparedPlan):
    """Callable with the list of the graph's inputs, which it empties, and the exact symbols.

    `symbols` are the sizes of the buckets. Raises CannotPadError.
    """

    def __init__(
        self,
        plan: Plan,
        padded: PaddedPlan,
        sources: tuple[SymbolSource, ...],
        symbols: Symbols,
        make_kernel: KernelFactory,
        fallbacks: Mapping[str, RegionFunction],
        specs: InputSpecs,
    ) -> None:
        self._specs = specs
        regions = [region for region in plan.regions if _is_of_the_buckets(region, padded)]
        self._prepare(plan, regions, symbols, make_kernel)
        generated = _Generator(plan, padded, sources, symbols, self.kernels, make_kernel, fallbacks)
        self._numbers = generated.numbers
        self._module = generated.run()
        self._forward = self._module.forward
        self._known: LruCache[tuple[tuple[Number, ...], Inputs]] = LruCache(KNOWN_SIZES)

    def __call__(self, args: list[Any], exact: tuple[Number, ...], symbols: Symbols) -> list[Any]:
        numbers, inputs = self._known.get_or_make(exact, lambda: self._of(symbols))
        inputs.admit(args)
        frame = self._frames.take()
        try:
            outputs: list[Any] = self._forward(frame, args, numbers)
        finally:
            self._frames.give_back(frame)
        return outputs

    def _of(self, symbols: Symbols) -> tuple[tuple[Number, ...], Inputs]:
        return self._numbers.evaluate(symbols), Inputs(self._specs, symbols)


def _is_of_the_buckets(region: Region, padded: PaddedPlan) -> bool:
    """True for an NKI region whose kernel serves all sizes of the buckets: it is padded, or no
    padded size enters it."""
    if region.match is None:
        return False
    return region.name in padded.regions or not padded.padded.among(region_symbols(region))


class _Generator:
    """Writes the function of a specialisation: `forward(frame, args, numbers)`."""

    def __init__(
        self,
        plan: Plan,
        padded: PaddedPlan,
        sources: tuple[SymbolSource, ...],
        symbols: Symbols,
        kernels: Mapping[str, KernelCall],
        make_kernel: KernelFactory,
        fallbacks: Mapping[str, RegionFunction],
    ) -> None:
        self._plan = plan
        self._padding = padded
        self._symbols = symbols
        self._kernels = kernels
        self._make_kernel = make_kernel
        self._fallbacks = fallbacks
        self._asserted = asserted_numbers(plan.graph_module.graph)
        self.numbers = Numbers()
        # The symbols come first, so that exact kernels find them.
        self._sources = [source.symbol for source in sources]
        for symbol in self._sources:
            self.numbers.place(symbol)
        self._graph = fx.Graph()
        self._frame, self._args, self._call = map(
            self._graph.placeholder, ("frame", "args", "numbers")
        )
        self._exact: dict[fx.Node, Any] = {}
        self._padded: dict[fx.Node, Any] = {}
        self._renewed: dict[tuple[fx.Node, Layout], Any] = {}
        self._placed: dict[tuple[fx.Node, Layout, Size, int], Any] = {}
        self._read: dict[int, fx.Node] = {}

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

    def _emit(self, function: Callable[..., Any], *args: Any, name: str) -> fx.Node:
        return self._graph.create_node("call_function", function, args, name=name)

    # ---- numbers

    def _is_number(self, node: fx.Node) -> bool:
        """A number that the inputs' sizes determine."""
        value = node.meta.get("val")
        if node in self._asserted or not is_symbolic(value):
            return False
        return Numbers.is_known(value, self._symbols)

    def _number(self, value: Any) -> fx.Node:
        """The exact value of a symbolic number."""
        place = self.numbers.place(value)
        if place not in self._read:
            with self._graph.inserting_after(self._call):
                name = f"number_{place}"
                self._read[place] = self._emit(operator.getitem, self._call, place, name=name)
        return self._read[place]

    def _exact_argument(self, item: Any) -> Any:
        if isinstance(item, fx.Node):
            return self._exact_value(item)
        return self._number(item) if is_symbolic(item) else item

    def _padded_argument(self, item: Any) -> Any:
        if isinstance(item, fx.Node):
            return self._padded_value(item)
        return concrete(item, self._symbols) if is_symbolic(item) else item

    # ---- the two forms of a value

    def _exact_value(self, node: fx.Node) -> Any:
        if node not in self._exact:
            if self._is_number(node):
                return self._number(node.meta["val"])
            made = self._padded[node]
            if self._padding.padded.enter_tensor(node.meta["val"]):
                cut = named(f"cut_{node.name}", self._cutter(node))
                made = self._emit(cut, made, self._call, name=f"{node.name}_exact")
            self._exact[node] = made
        return self._exact[node]

    def _padded_value(self, node: fx.Node) -> Any:
        if node not in self._padded:
            if self._is_number(node):
                return concrete(node.meta["val"], self._symbols)
            self._padded[node] = self._pad(node)
        return self._padded[node]

    def _pad(self, node: fx.Node, layout: Layout = (), made: Any = None) -> Any:
        """The exact value, or what is `made` of it, padded at the end of its dimensions or to a
        layout."""
        made = self._exact_value(node) if made is None else made
        if not self._padding.padded.enter_tensor(node.meta.get("val")):
            return made
        parts = {d: axis[0] for d, axis in self._parts(layout).items()}
        spec = concrete_spec(node.meta["val"], self._symbols)
        fill = next((axis.fill for axis in layout if axis.fill is not None), 0)
        pad = named(f"pad_{node.name}", padder(spec, parts, fill))
        numbers = (self._call,) if parts else ()
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

    def _cutter(self, node: fx.Node) -> Cutter:
        value, layout = node.meta["val"], self._padding.layouts[node]
        return Cutter(
            [[self._padded_size(size) for size in axis.sizes] for axis in layout],
            [[self.numbers.place(_form(size)) for size in axis.sizes] for axis in layout],
            [self.numbers.place(size) for size in value.shape],
            [self.numbers.place(step) for step in value.stride()],
            self._parts(layout),
        )

    def _padded_size(self, size: int | Size) -> int:
        return int(concrete(_form(size), self._symbols))

    def _parts(self, layout: Layout) -> dict[int, dict[int, Parts]]:
        """The parts of sizes that have some, by dimension and place in it."""
        return {dim: found for dim, axis in enumerate(layout) if (found := self._parts_of(axis))}

    def _parts_of(self, axis: Axis) -> dict[int, Parts]:
        return {
            place: (
                tuple(self._padded_size(part) for part in size.parts),
                tuple(self.numbers.place(_form(part)) for part in size.parts),
            )
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
        kernel = self._kernels[region.name]
        values = [self._input(node, padding) for node in kernel.nodes]
        step = named(region.name, kernel)
        self._results(
            region, self._emit(step, self._frame, *values, name=region.name), self._padded
        )

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
        kernel = self._kernels.get(region.name)
        if region.match is None:
            step = fallback_step(self._fallbacks[region.name])
            values = [self._exact_value(node) for node in region.inputs]
        elif kernel is not None:
            step = kernel
            values = [self._frame, *map(self._exact_value, kernel.nodes)]
        else:
            step = kernels = _ExactKernels(region, self._sources, self._make_kernel)
            values = [self._call, *map(self._exact_value, kernels.nodes)]
        result = self._emit(named(region.name, step), *values, name=region.name)
        self._results(region, result, self._exact)

    def _results(self, region: Region, result: fx.Node, values: dict[fx.Node, Any]) -> None:
        for index, node in enumerate(region.outputs):
            values[node] = self._emit(operator.getitem, result, index, name=node.name)


def _form(size: int | Size) -> Any:
    return size if isinstance(size, int) else size.form


class _ExactKernels:
    """A region that must see exact sizes: a kernel for each set of those that it reads, the last
    ones kept."""

    def __init__(self, region: Region, symbols: list[Any], make_kernel: KernelFactory) -> None:
        assert region.match is not None
        self._region = region
        read = region_symbols(region)
        self._symbols = [(i, symbol) for i, symbol in enumerate(symbols) if symbol in read]
        self._make = make_kernel
        bound = [node for node in region.match.bindings.values() if has_tensor(node)]
        self.nodes: tuple[fx.Node, ...] = tuple(dict.fromkeys((*bound, *region.inputs)))
        self._known: LruCache[KernelCall] = LruCache(EXACT_KERNELS)

    def __call__(self, numbers: tuple[Number, ...], *values: Any) -> list[torch.Tensor]:
        key = tuple(numbers[place] for place, _ in self._symbols)
        return self._known.get_or_make(key, lambda: self._kernel(key))([], *values)

    def _kernel(self, key: tuple[Number, ...]) -> KernelCall:
        symbols = {s: number for (_, s), number in zip(self._symbols, key, strict=True)}
        assert self._region.match is not None
        places = {
            node: Place(concrete_spec(node.meta["val"], symbols), None)
            for node in self._region.match.results
            if node is not None
        }
        return self._make(self._region, places, symbols)
