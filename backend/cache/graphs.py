"""Canonical graphs on disk: a warm process runs no pass over a graph that it knows.

The key is the text of the graph before the passes. An entry says which nodes the canonical graph
has: what stands in both keeps its fake value, and all have the user's lines of the nodes that they
come from, which are those of this process. Its values are believed, so it is code (`Kind.is_code`);
but what is read has to have the text that was written, and the graph is verified as a new one is.
Graphs with symbolic sizes, and those that hold what has no JSON, are not kept.
"""

from __future__ import annotations

import base64
import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from trnx.backend.cache.cache import GRAPH, Codec
from trnx.backend.cache.current import current
from trnx.backend.cache.entries import Key, text_digest
from trnx.backend.cache.errors import DamagedEntryError
from trnx.backend.cache.graph_text import has_symbols, shapes_of, structure_of
from trnx.backend.cache.identity import versions
from trnx.backend.exported.errors import DamagedFolderError, ExportError
from trnx.backend.exported.values import decode, encode
from trnx.backend.torch_internals import without_fake_mode
from trnx.fx_passes.metadata import NOT_INHERITED, VAL, copied_meta, fake_mode, without_guards

log = logging.getLogger(__name__)

# Bytes of constants that passes have computed, at the most.
_MOST_CONTENT = 1 << 20


@dataclass(frozen=True)
class GraphText:
    """Digests of a graph's text; see `graph_text`."""

    structure: str
    shapes: str

    @classmethod
    def of(cls, gm: fx.GraphModule) -> GraphText | None:
        """None for a graph that its text does not tell from others."""
        structure, shapes = structure_of(gm), shapes_of(gm)
        if structure is None or shapes is None:
            return None
        return cls(text_digest(structure), text_digest(shapes))


def kept_canonical(
    gm: fx.GraphModule, passes: str, make: Callable[[fx.GraphModule], fx.GraphModule]
) -> tuple[fx.GraphModule, GraphText | None]:
    """The graph after `passes`, by `make` where it is not in the cache, and its text where that is
    known. `gm` may be changed."""
    cache = current()
    is_kept = cache is not None and fake_mode(gm.graph) is not None and not has_symbols(gm)
    text = GraphText.of(gm) if is_kept else None
    if cache is None or text is None:
        return make(gm), None
    parts = {**versions(), "passes": passes, "graph": text.structure, "shapes": text.shapes}
    codec = _GraphCodec(gm)
    made = cache.get_or_make(Key(GRAPH, parts), lambda: make(gm), Codec(codec.encode, codec.decode))
    return made, codec.text


class _GraphCodec:
    """Canonical graphs of `gm` as JSON and back. `text` is that of the graph which was written or
    read last."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self.text: GraphText | None = None
        self._gm = gm
        # As it was before the passes, which change it.
        self._given = list(gm.graph.nodes)
        self._metas = [dict(node.meta) for node in self._given]
        self._names = {node.name: place for place, node in enumerate(self._given)}
        self._origins = {_inherited(m): place for place, m in reversed([*enumerate(self._metas)])}
        self._values = {
            id(meta[VAL]): place
            for place, meta in reversed([*enumerate(self._metas)])
            if meta.get(VAL) is not None
        }
        self._attributes = {n.target: _attribute(gm, n) for n in self._given if n.op == "get_attr"}

    # -- to JSON -----------------------------------------------------------------------------

    def encode(self, made: fx.GraphModule) -> Any:
        """The graph, None for one that does not come back as it is."""
        self.text = GraphText.of(made)
        inputs = [n.name for n in made.graph.find_nodes(op="placeholder")]
        if self.text is None or inputs != self._inputs() or has_symbols(made):
            return None
        try:
            nodes = [self._written(made, n) for n in made.graph.nodes if n.op != "placeholder"]
        except (ExportError, KeyError) as error:
            log.info("a canonical graph is not kept: %s", error)
            return None
        return {"nodes": nodes, "structure": self.text.structure, "shapes": self.text.shapes}

    def _inputs(self) -> list[str]:
        return [node.name for node in self._given if node.op == "placeholder"]

    def _written(self, made: fx.GraphModule, node: fx.Node) -> dict[str, Any]:
        if node.op == "output":
            return {"output": encode(node.args[0])}
        found: dict[str, Any] = {"name": node.name, "origin": self._origin(node)}
        found["value"] = self._value(node.meta[VAL]) if VAL in node.meta else None
        if node.op == "get_attr":
            value = _attribute(made, node)
            is_given = self._attributes.get(node.target) is value
            return {
                **found,
                "attribute": node.target,
                "content": None if is_given else _content(value),
            }
        if node.op != "call_function":
            raise ExportError(f"{node.op} is no call of an operator")
        found["target"] = _target_name(node.target)
        found["args"] = encode(node.args)
        # In their order, which JSON with sorted keys does not keep.
        found["kwargs"] = [[key, encode(value)] for key, value in node.kwargs.items()]
        return found

    def _origin(self, node: fx.Node) -> int:
        """The place of a node, before the passes, with the same lines and modules."""
        place = self._names.get(node.name)
        wanted = _inherited(node.meta)
        if place is not None and _inherited(self._metas[place]) == wanted:
            return place
        return self._origins[wanted]

    def _value(self, value: Any) -> Any:
        """A fake value: the place of a node that has it, or what it is like."""
        place = self._values.get(id(value))
        if place is not None:
            return {"of": place}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [self._value(item) for item in value]}
        if not isinstance(value, torch.Tensor):
            return {"constant": encode(value)}
        if value.layout is not torch.strided or value.device.type != "cpu":
            raise ExportError("a value is no dense tensor in host memory")
        layout = [[*value.shape], [*value.stride()], value.storage_offset()]
        return {"tensor": [*layout, encode(value.dtype)]}

    # -- from JSON ---------------------------------------------------------------------------

    def decode(self, given: Any) -> fx.GraphModule:
        """The canonical graph, in the place of the one that was given. Raises DamagedEntryError,
        or what reading JSON of another form raises."""
        module, before = self._gm, self._gm.graph
        nodes: dict[str, fx.Node] = {}
        graph = fx.Graph()
        for place, node in enumerate(self._given):
            if node.op == "placeholder":
                nodes[node.name] = graph.node_copy(node)
                nodes[node.name].meta = self._metas[place]
        made: list[str] = []
        try:
            with without_guards(fake_mode(before)), torch.no_grad():
                for one in given["nodes"]:
                    self._read(graph, one, nodes, made)
            module.graph = graph
            text = GraphText.of(module)
            if text is None or [text.structure, text.shapes] != [
                given["structure"],
                given["shapes"],
            ]:
                raise DamagedEntryError("it is not the graph that was written")
        except BaseException as error:
            for name in made:
                delattr(module, name)
            module.graph = before
            if isinstance(error, (DamagedFolderError, RuntimeError)):
                raise DamagedEntryError(str(error)) from error
            raise
        self.text = text
        return module

    def _read(
        self, graph: fx.Graph, given: Mapping[str, Any], nodes: dict[str, fx.Node], made: list[str]
    ) -> None:
        if "output" in given:
            output = graph.output(decode(given["output"], nodes))
            output.meta = dict(self._metas[-1])
            return
        name = given["name"]
        if "attribute" in given:
            target = given["attribute"]
            if given["content"] is not None:
                if hasattr(self._gm, target):
                    raise DamagedEntryError(f"{target} is there already")
                self._gm.register_buffer(target, _tensor(given["content"]), persistent=False)
                made.append(target)
            node = graph.create_node("get_attr", target, name=name)
        else:
            kwargs = {key: decode(value, nodes) for key, value in given["kwargs"]}
            args = decode(given["args"], nodes)
            target = _target(given["target"])
            node = graph.create_node("call_function", target, args, kwargs, name=name)
        origin, value = given["origin"], given["value"]
        if self._names.get(name) == origin and value == {"of": origin}:
            node.meta = dict(self._metas[origin])
        else:
            node.meta = copied_meta(self._given[origin])
            if value is not None:
                node.meta[VAL] = self._fake(value)
        nodes[name] = node

    def _fake(self, given: Mapping[str, Any]) -> Any:
        ((kind, value),) = given.items()
        if kind == "of":
            return self._metas[value][VAL]
        if kind in ("list", "tuple"):
            items = [self._fake(item) for item in value]
            return items if kind == "list" else tuple(items)
        if kind == "constant":
            return decode(value, {})
        shape, strides, offset, dtype = value
        made = torch.empty_strided(shape, strides, dtype=decode(dtype, {}), device="cpu")
        return made.as_strided(shape, strides, offset) if offset else made


def _inherited(meta: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """What a pass hands on of a node, by identity."""
    return tuple(sorted((key, id(meta[key])) for key in meta if key not in NOT_INHERITED))


def _attribute(gm: fx.GraphModule, node: fx.Node) -> Any:
    return operator.attrgetter(str(node.target))(gm)


def _content(value: Any) -> dict[str, Any]:
    if type(value) is not torch.Tensor or value.layout is not torch.strided:
        raise ExportError("a constant is no dense tensor")
    if value.numel() * value.itemsize > _MOST_CONTENT or not value.is_contiguous():
        raise ExportError("a constant is large, or has strides of its own")
    with without_fake_mode():
        data = value.resolve_conj().resolve_neg().flatten().view(torch.uint8).numpy().tobytes()
    text = base64.b64encode(data).decode()
    return {"shape": [*value.shape], "dtype": encode(value.dtype), "bytes": text}


def _tensor(given: Mapping[str, Any]) -> torch.Tensor:
    data = np.frombuffer(base64.b64decode(given["bytes"], validate=True), np.uint8)
    with without_fake_mode(), torch.inference_mode(False):
        made = torch.empty(given["shape"], dtype=decode(given["dtype"], {}), device="cpu")
        made.flatten().view(torch.uint8).numpy()[:] = data
    return made


def _target_name(target: Any) -> str:
    if target is operator.getitem:
        return "getitem"
    if not isinstance(target, torch._ops.OpOverload):
        raise ExportError(f"{target} is no operator")
    return str(target)


def _target(name: str) -> Any:
    if name == "getitem":
        return operator.getitem
    namespace, operation, overload = name.split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), operation), overload)
    if not isinstance(found, torch._ops.OpOverload):
        raise DamagedEntryError(f"{name!r} is no operator")
    return found
