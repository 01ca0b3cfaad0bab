"""The graph of an archive, from its JSON. Only operators of ATen and of trnx are called, and only
such that write to nothing.

What the schema of torch's JSON can say besides (custom objects, expressions, graphs within graphs,
operators of other libraries) is refused: `trnx.export` does not write it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from trnx.backend.exported.archive import MADE
from trnx.backend.exported.archive_reader import Archive
from trnx.backend.exported.errors import DamagedFolderError
from trnx.backend.torch_internals import archive_codes, fake_mode, is_dispatched
from trnx.fx_passes.metadata import VAL
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops

_DTYPES, _LAYOUTS, _FORMATS = archive_codes()
_TARGET = re.compile(r"torch\.ops\.(aten|prims|trnx)\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_FLOATS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
# They write to nothing that a schema shows: a file mapped into memory, lines on the terminal.
_REFUSED = frozenset({"from_file", "_print"})

Json = Mapping[str, Any]


def read_graph(archive: Archive) -> fx.GraphModule:
    """The plan's graph: every node has its name, its fake value, its user's line and its module.

    Raises DamagedFolderError for what `trnx.export` does not write.
    """
    try:
        return _Reader(archive).run()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise DamagedFolderError(
            f"the archive's graph cannot be read ({type(error).__name__}: {error}); export anew"
        ) from error


class _Reader:
    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.json: Json = archive.program["graph_module"]
        self.described: Json = self.json["graph"]["tensor_values"]
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[str, fx.Node] = {}
        self.fakes = fake_mode()

    def run(self) -> fx.GraphModule:
        for spec, given in zip(self.specs, self.json["graph"]["inputs"], strict=True):
            self.input(spec, given)
        for call in self.json["graph"]["nodes"]:
            self.call(call)
        self.graph.output(tuple(self.argument(one) for one in self.json["graph"]["outputs"]))
        return fx.GraphModule(self.root, self.graph)

    @property
    def specs(self) -> list[Json]:
        found: list[Json] = self.json["signature"]["input_specs"]
        return found

    # -- nodes -------------------------------------------------------------------------------

    def input(self, spec: Json, given: Json) -> None:
        made = str(spec.get("tensor_constant", {}).get("tensor_constant_name", ""))
        if "as_tensor" not in given:  # a number among the arguments
            name = str(spec["constant_input"]["name"])
            self.add(name, self.graph.placeholder(self.checked(name)), self.argument(given))
            return
        name = self.checked(given["as_tensor"]["name"])
        if made.startswith(MADE):
            setattr(self.root, name, self.archive.tensors[made])
            node = self.graph.create_node("get_attr", name, name=name)
        else:
            node = self.graph.placeholder(name)
        self.add(name, node, self.fake(name))

    def call(self, call: Json) -> None:
        target = _target(call["target"])
        args = [self.argument(i["arg"]) for i in call["inputs"] if i["kind"] == 1]
        kwargs = {
            self.checked(i["name"]): self.argument(i["arg"])
            for i in call["inputs"]
            if i["kind"] == 2
        }
        if len(args) + len(kwargs) != len(call["inputs"]):
            raise ValueError(f"{call['target']} has arguments of an unknown kind")
        name = self.checked(call["name"])
        made = self.graph.create_node("call_function", target, tuple(args), kwargs, name=name)
        made.meta = _metadata(call["metadata"])
        self.results(made, name, call["outputs"])

    def results(self, made: fx.Node, name: str, outputs: list[Json]) -> None:
        """Values of the results; those of a call with several get a `getitem` each."""
        schema = made.target._schema  # type: ignore[union-attr]
        if len(schema.returns) == 1 and "as_tensor" in outputs[0]:
            self.add(name, made, self.fake(name))
            return
        if len(schema.returns) == 1:
            outputs = [{"as_tensor": one} for one in outputs[0]["as_tensors"]]
        names = [one["as_tensor"]["name"] if "as_tensor" in one else None for one in outputs]
        fakes = [None if one is None else self.fake(one) for one in names]
        self.add(name, made, tuple(fakes))
        for index, one in enumerate(names):
            if one is not None and one not in self.values and not self.is_unused(one):
                item = self.graph.create_node(
                    "call_function", operator.getitem, (made, index), name=self.checked(one)
                )
                item.meta = dict(made.meta)
                self.add(one, item, fakes[index])

    def is_unused(self, name: str) -> bool:
        return bool(re.search(r"_unused_\d+$", name))

    def add(self, name: str, node: fx.Node, value: Any) -> None:
        if name in self.values or node.name != name:
            raise ValueError(f"the name {name!r} is given twice")
        self.values[name] = node
        node.meta[VAL] = value

    def checked(self, name: Any) -> str:
        """A name as Python has them: fx writes names into the source of a function."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name")
        return name

    # -- values ------------------------------------------------------------------------------

    def fake(self, name: str) -> torch.Tensor:
        meta = self.described[name]
        sizes, strides = ([n["as_int"] for n in meta[key]] for key in ("sizes", "strides"))
        if not all(type(n) is int and n >= 0 for n in (*sizes, *strides)):
            raise ValueError(f"{name} has sizes that are no numbers")
        if _LAYOUTS[meta["layout"]] is not torch.strided or meta["device"]["type"] != "cpu":
            raise ValueError(f"{name} is no dense tensor in host memory")
        with self.fakes:
            return torch.empty_strided(sizes, strides, dtype=_DTYPES[meta["dtype"]])

    def argument(self, given: Json) -> Any:
        ((kind, value),) = given.items()
        if kind not in _KINDS:
            raise ValueError(f"an argument of kind {kind} is none that trnx.export writes")
        return _KINDS[kind](self, value)

    def node(self, given: Json) -> fx.Node:
        return self.values[given["name"]]

    def optional(self, given: Json) -> fx.Node | None:
        return None if "as_none" in given else self.node(given["as_tensor"])


def _plain(*types: type) -> Callable[[_Reader, Any], Any]:
    def read(_: _Reader, value: Any) -> Any:
        if type(value) not in types:
            raise ValueError(f"{value!r} is no {types[0].__name__}")
        return value

    return read


def _list_of(read: Callable[[_Reader, Any], Any]) -> Callable[[_Reader, Any], Any]:
    return lambda reader, value: [read(reader, item) for item in value]


def _float(_: _Reader, value: Any) -> float:
    return _FLOATS[value] if isinstance(value, str) else float(value)


def _device(_: _Reader, value: Any) -> torch.device:
    if value["type"] != "cpu":
        raise ValueError(f"{value} is not host memory")
    return torch.device("cpu")


_INT, _BOOL, _STRING = _plain(int), _plain(bool), _plain(str)
_KINDS: Mapping[str, Callable[[_Reader, Any], Any]] = {
    "as_none": lambda _, value: None,  # noqa: ARG005
    "as_tensor": _Reader.node,
    "as_tensors": _list_of(_Reader.node),
    "as_optional_tensor": _Reader.optional,
    "as_optional_tensors": _list_of(_Reader.optional),
    "as_int": _INT,
    "as_ints": _list_of(_INT),
    "as_float": _float,
    "as_floats": _list_of(_float),
    "as_bool": _BOOL,
    "as_bools": _list_of(_BOOL),
    "as_string": _STRING,
    "as_strings": _list_of(_STRING),
    "as_complex": lambda _, value: complex(value["real"], value["imag"]),
    "as_scalar_type": lambda _, value: _DTYPES[value],
    "as_layout": lambda _, value: _LAYOUTS[value],
    "as_memory_format": lambda _, value: _FORMATS[value],
    "as_device": _device,
}


def _target(name: Any) -> Any:
    """The overload of an operator. Raises ValueError for one that writes, or is not known."""
    found = _TARGET.fullmatch(name) if isinstance(name, str) else None
    if found is None or found[2] in _REFUSED:
        raise ValueError(f"{name!r} is no operator that a plan calls")
    overload = getattr(getattr(getattr(torch.ops, found[1]), found[2]), found[3])
    if not isinstance(overload, torch._ops.OpOverload) or overload._schema.is_mutable:
        raise ValueError(f"{name!r} writes to its arguments, and a plan does not")
    # The namespace has TorchScript's functions as well: `aten::save` writes a file.
    if not is_dispatched(overload):
        raise ValueError(f"{name!r} is no operator on tensors, and a plan calls no other")
    return overload


def _metadata(given: Mapping[str, str]) -> dict[str, Any]:
    """The user's lines and modules of a node, as export writes them: `key,path,class;...`."""
    modules = [part.split(",") for part in given.get("nn_module_stack", "").split(";")]
    stack = {part[0]: (part[1], part[2].rpartition(".")[2]) for part in modules if len(part) == 3}
    return {"stack_trace": given.get("stack_trace", ""), "nn_module_stack": stack}
