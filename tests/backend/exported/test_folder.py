"""Folders that are not as they were written, or were written by somebody who means harm: each is
refused by name, and nothing in it is unpickled or executed."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trnx
from trnx.errors import (
    DamagedFolderError,
    FolderVersionError,
    ForeignFolderError,
    UnsafeFolderError,
)

Edit = Callable[[Callable[[dict[str, Any]], None]], Path]
Seal = Callable[[Path], None]


def _load(folder: Path) -> Any:
    return trnx.load(folder, runner="simulator")


def _flip(file: Path, place: int = -100) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(bytes(data))


def _source(folder: Path) -> Path:
    return next((folder / "sources").rglob("linear.py"))


# -- damage: checksums do not fit --------------------------------------------------------------

_DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a byte of the archive": (lambda f: _flip(f / "graph.pt2"), "graph.pt2 is not what was"),
    "the archive cut": (
        lambda f: (f / "graph.pt2").write_bytes((f / "graph.pt2").read_bytes()[:-1]),
        "bytes and not",
    ),
    "the archive empty": (lambda f: (f / "graph.pt2").write_bytes(b""), "has 0 bytes"),
    "no archive": (lambda f: (f / "graph.pt2").unlink(), "graph.pt2 is missing"),
    "a kernel's source": (lambda f: _flip(_source(f)), "linear.py is not what was"),
    "no source": (lambda f: _source(f).unlink(), "linear.py is missing"),
    "a file more": (lambda f: (f / "sources" / "x.py").write_text("1/0"), "x.py was added"),
    "a link": (lambda f: (f / "more").symlink_to("/etc"), "is a link"),
    "the manifest cut": (
        lambda f: (f / "manifest.json").write_text((f / "manifest.json").read_text()[:-9]),
        "cannot be read",
    ),
    "the manifest no text": (lambda f: (f / "manifest.json").write_bytes(b"\xff"), "cannot be"),
    "the manifest deep": (lambda f: (f / "manifest.json").write_text("[" * 99999), "cannot be"),
}


@pytest.mark.parametrize("case", _DAMAGE)
def test_damage(case: str, copy: Path) -> None:
    change, what = _DAMAGE[case]
    change(copy)
    with pytest.raises(DamagedFolderError, match=what):
        _load(copy)


def test_foreign(tmp_path: Path, edit: Edit) -> None:
    with pytest.raises(ForeignFolderError, match="no manifest"):
        _load(tmp_path / "nothing")
    (tmp_path / "manifest.json").write_text('{"format": "another"}')
    with pytest.raises(ForeignFolderError, match="is not the manifest"):
        _load(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(ForeignFolderError, match="is not the manifest"):
        _load(tmp_path)
    with pytest.raises(ForeignFolderError, match="version 2 of the format"):
        _load(edit(lambda m: m.update(version=2)))


def test_everybody_may_write(copy: Path) -> None:
    (copy / "sources").chmod(0o777)
    with pytest.raises(UnsafeFolderError, match=r"chmod -R o-w"):
        _load(copy)


def test_other_torch(edit: Edit) -> None:
    with pytest.raises(FolderVersionError, match=r"install torch 2\.99\.0"):
        _load(edit(lambda m: m.update(torch="2.99.0+cpu")))


# -- harm: the checksums fit -------------------------------------------------------------------


def test_a_changed_kernel_is_not_taken(copy: Path, seal: Seal, edit: Edit) -> None:
    """The source, its checksum and the region's are changed together: what runs is still the
    installation's, and the folder is refused because it was made for another."""
    file = _source(copy)
    file.write_text("raise SystemExit('executed')\n")
    seal(copy)
    digest = json.loads((copy / "manifest.json").read_text())["files"]
    name = file.relative_to(copy).as_posix()

    def change(manifest: dict[str, Any]) -> None:
        for step in manifest["steps"]:
            if isinstance(step, dict) and name in step.get("sources", {}):
                step["sources"][name] = digest[name]["sha256"]

    with pytest.raises(FolderVersionError, match=r"linear is not the one that was exported"):
        _load(edit(change))


def test_a_changed_generated_kernel_is_not_taken(copy: Path, seal: Seal, edit: Edit) -> None:
    """The same for a kernel that is generated."""
    file = next((copy / "sources" / "generated").iterdir())
    file.write_text("raise SystemExit('executed')\n")
    seal(copy)
    files = json.loads((copy / "manifest.json").read_text())["files"]
    name = file.relative_to(copy).as_posix()

    def change(manifest: dict[str, Any]) -> None:
        for step in manifest["steps"]:
            if isinstance(step, dict) and name in step.get("sources", {}):
                step["sources"][name] = files[name]["sha256"]

    with pytest.raises(FolderVersionError, match=r"fused_\w+ is not the one that was exported"):
        _load(edit(change))


def _rewritten(folder: Path, change: Callable[[str, bytes], bytes]) -> None:
    """The archive with its members changed."""
    members = {}
    with zipfile.ZipFile(folder / "graph.pt2") as opened:
        for name in opened.namelist():
            members[name] = change(name, opened.read(name))
    with zipfile.ZipFile(folder / "graph.pt2", "w") as made:
        for name, data in members.items():
            made.writestr(name, data)


def _with_graph(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The archive with a changed graph."""

    def run(name: str, data: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return data
        program = json.loads(data)
        change(program["graph_module"])
        return json.dumps(program).encode()

    _rewritten(folder, run)


class _Harm:
    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)


def test_pickled_tensors_are_refused(copy: Path, seal: Seal) -> None:
    def change(name: str, data: bytes) -> bytes:
        if name.endswith("model_weights_config.json"):
            config = json.loads(data)
            for payload in config["config"].values():
                payload["use_pickle"] = True
            return json.dumps(config).encode()
        return pickle.dumps(_Harm()) if "/weights/weight_" in name else data

    _rewritten(copy, change)
    seal(copy)
    with pytest.raises(DamagedFolderError, match="unpickles nothing"):
        _load(copy)


def test_pickles_that_nobody_asked_for_are_not_opened(copy: Path, seal: Seal) -> None:
    """`torch.export.load` would unpickle example inputs; nobody looks at them here."""
    harm = io.BytesIO()
    torch.save(_Harm(), harm)
    _rewritten(copy, lambda n, data: harm.getvalue() if "sample_inputs" in n else data)
    seal(copy)
    assert _load(copy)(torch.randn(16, 64))["calls"] == 2


def _node(graph: dict[str, Any], target: str) -> Any:
    return next(n for n in graph["graph"]["nodes"] if n["target"].endswith(target))


def _set(where: str, **entries: Any) -> Callable[[dict[str, Any]], None]:
    return lambda graph: _node(graph, where).update(entries)


def _size(graph: dict[str, Any]) -> None:
    expression = {"as_expr": {"expr_str": "__import__('os')._exit(3)", "hint": None}}
    graph["graph"]["tensor_values"]["tanh"]["sizes"][0] = expression


def _huge(graph: dict[str, Any]) -> None:
    graph["graph"]["tensor_values"]["tanh"]["sizes"][0] = {"as_int": -5}


def _argument(kind: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def run(graph: dict[str, Any]) -> None:
        _node(graph, "tanh.default")["inputs"][0]["arg"] = {kind: value}

    return run


_HARM: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "python": (_set("tanh.default", target="os.system"), "is no operator"),
    "a lookup": (_set("tanh.default", target="torch.ops.aten.__class__.x"), "cannot be read"),
    "another library": (_set("tanh.default", target="torch.ops.mkldnn._x.default"), "no operator"),
    "a file": (_set("tanh.default", target="torch.ops.aten.from_file.default"), "is no operator"),
    "a file of TorchScript": (
        _set("tanh.default", target="torch.ops.aten.save.default"),
        "no operator on tensors",
    ),
    "a write": (_set("tanh.default", target="torch.ops.aten.tanh_.default"), "writes to"),
    "no such operator": (_set("tanh.default", target="torch.ops.aten.nothing.default"), "nothing"),
    "a name": (_set("tanh.default", name="x = __import__('os')._exit(3)"), "is no name"),
    "an expression": (_size, "cannot be read"),
    "a size": (_huge, "sizes that are no numbers"),
    "a custom object": (_argument("as_custom_obj", {"name": "x", "class_fqn": "y"}), "of kind"),
    "a graph": (_argument("as_graph", {}), "of kind"),
    "a value that is not there": (_argument("as_tensor", {"name": "nothing"}), "nothing"),
    "text for a number": (_argument("as_int", "1"), "is no int"),
    "a device": (_argument("as_device", {"type": "cuda", "index": 0}), "not host memory"),
}


@pytest.mark.parametrize("case", _HARM)
def test_harm_in_the_graph(case: str, copy: Path, seal: Seal) -> None:
    change, what = _HARM[case]
    _with_graph(copy, change)
    seal(copy)
    with pytest.raises(DamagedFolderError, match=what):
        _load(copy)


_SIGNATURES: dict[str, Callable[[dict[str, Any]], None]] = {
    "an input of no kind": lambda s: s["input_specs"].__setitem__(2, {"node": "linear"}),
    "a buffer without a name": lambda s: s["output_specs"][0].update(buffer_mutation={}),
    "another buffer": lambda s: s["input_specs"][2]["buffer"].update(buffer_name=0),
}


@pytest.mark.parametrize("case", _SIGNATURES)
def test_harm_in_the_signature(case: str, copy: Path, seal: Seal) -> None:
    _with_graph(copy, lambda graph: _SIGNATURES[case](graph["signature"]))
    seal(copy)
    with pytest.raises(DamagedFolderError, match="cannot be"):
        _load(copy)


def test_weights_beyond_their_bytes(copy: Path, seal: Seal) -> None:
    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("model_weights_config.json"):
            return data
        config = json.loads(data)
        config["config"]["linear.weight"]["tensor_meta"]["storage_offset"] = {"as_int": 1 << 40}
        return json.dumps(config).encode()

    _rewritten(copy, change)
    seal(copy)
    with pytest.raises(DamagedFolderError, match="beyond its bytes"):
        _load(copy)


def test_no_archive_at_all(copy: Path, seal: Seal) -> None:
    (copy / "graph.pt2").write_bytes(pickle.dumps(_Harm()))
    seal(copy)
    with pytest.raises(DamagedFolderError, match="no archive of a plan"):
        _load(copy)


def _kernel(manifest: dict[str, Any]) -> Any:
    return next(s for s in manifest["steps"] if isinstance(s, dict) and s["kernel"] == "linear")


_PLANS: dict[str, Callable[[dict[str, Any]], None]] = {
    "a step lacks": lambda m: m["steps"].pop(),
    "steps turned round": lambda m: m["steps"].reverse(),
    "a step twice": lambda m: m["steps"].append(m["steps"][-1]),
    "no such node": lambda m: _kernel(m).update(nodes=["nothing"]),
    "no such engine": lambda m: _kernel(m).update(engine="cuda"),
    "nki without a kernel": lambda m: _kernel(m).pop("kernel"),
    "a binding": lambda m: _kernel(m)["bindings"].update(x={"node": "nothing"}),
    "a constant": lambda m: _kernel(m)["bindings"].update(x={"pickle": "gASV"}),
    "entries lack": lambda m: m.pop("ledger"),
    "the ledger": lambda m: m.update(ledger=[{"x": 1}]),
    "the inputs": lambda m: m.update(inputs={"leaf": 99}),
    "the outputs": lambda m: m.update(outputs={"class": "os.system"}),
    "the files": lambda m: m.update(files=[]),
    "a file elsewhere": lambda m: m["files"].update({"../../x": {"bytes": 1, "sha256": "0"}}),
    "a constant's place": lambda m: m.update(constants={"x": 1}),
    "a constant too many": lambda m: m.update(constants={"9": 1}),
    "a constant's number": lambda m: m.update(constants={"0": {"float": "1/0"}}),
    "a tensor that is text": lambda m: _kernel(m)["bindings"].update(residual="x"),
    "a kernel without results": lambda m: _kernel(m).update(results=[]),
    "no constants": lambda m: m.update(constants=None),
}


@pytest.mark.parametrize("case", _PLANS)
def test_harm_in_the_plan(case: str, edit: Edit) -> None:
    with pytest.raises(DamagedFolderError):
        _load(edit(_PLANS[case]))


def test_a_folder_may_be_moved_and_read_only(exported: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(exported, tmp_path / "elsewhere"))
    for path in (moved, *moved.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert _load(moved)(torch.randn(16, 64))["calls"] == 2
    for path in (moved, *moved.rglob("*")):
        path.chmod(0o755)
