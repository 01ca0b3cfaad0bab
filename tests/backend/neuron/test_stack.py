"""What is installed is found by where it lies, without an import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trnx.backend.neuron.stack import find_stack

FAKES = Path(__file__).parents[2] / "fakes"


def lay_out(root: Path, *files: str, **metadata: str) -> None:
    """Empty files, and the metadata of distributions: name=version."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    for name, version in metadata.items():
        folder = root / f"{name}-{version}.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        (folder / "METADATA").write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for packages, on the path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_nothing_is_here(tmp_path: Path) -> None:
    stack = find_stack({}, tmp_path)
    assert (stack.kind, stack.nki, stack.nodes, stack.devices, stack.lnc) == (
        "none", "none", (), None, None,
    )  # fmt: skip
    assert not stack.has_device


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("torch_neuronx/neuron_dynamo_backend/__init__.py", "native"),
        ("torch_neuronx/xla_impl/__init__.py", "xla"),
        ("torch_neuronx/xla.py", "xla"),
        ("torch_neuronx/__init__.py", "placeholder"),
    ],
)
def test_torch_neuronx(site: Path, file: str, kind: str) -> None:
    lay_out(site, "torch_neuronx/__init__.py", file, torch_neuronx="2.9.1")
    stack = find_stack({}, site)
    assert (stack.kind, stack.version) == (kind, "2.9.1")
    assert "torch_neuronx" not in sys.modules


@pytest.mark.parametrize(
    ("file", "kind"), [("nki/isa/__init__.py", "native"), ("nki/__init__.py", "placeholder")]
)
def test_nki(site: Path, file: str, kind: str) -> None:
    lay_out(site, "nki/__init__.py", file, nki="0.7.0")
    stack = find_stack({}, site)
    assert (stack.nki, stack.nki_version) == (kind, "0.7.0")
    assert "nki" not in sys.modules


def test_a_package_without_metadata_has_no_version(site: Path) -> None:
    lay_out(site, "torch_neuronx/__init__.py")
    assert find_stack({}, site).version == ""


def test_device_nodes(tmp_path: Path) -> None:
    lay_out(tmp_path, "dev/neuron0", "dev/neuron11", "dev/neuron_other", "dev/null")
    stack = find_stack({"NEURON_LOGICAL_NC_CONFIG": "2"}, tmp_path)
    assert [Path(node).name for node in stack.nodes] == ["neuron0", "neuron11"]
    assert stack.opened == stack.nodes
    assert stack.has_device
    assert stack.lnc == "2"


@pytest.mark.parametrize(
    ("asked", "takes"), [(">=3.12,<3.15", "12 to 14"), (">=3.9", "all"), ("", "12 to 14")]
)
def test_the_pythons_are_those_of_the_distribution(site: Path, asked: str, takes: str) -> None:
    lay_out(site, "torch_neuronx/neuron_dynamo_backend/__init__.py", torch_neuronx="2.13.3")
    if asked:
        metadata = site / "torch_neuronx-2.13.3.dist-info" / "METADATA"
        metadata.write_text(metadata.read_text() + f"Requires-Python: {asked}\n")
    here = sys.version_info[:2]
    expected = (3, 12) <= here <= (3, 14) if takes == "12 to 14" else here <= (3, 14)
    assert find_stack({}, site).has_python is expected


def test_the_fakes_are_a_whole_stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(FAKES)
    stack = find_stack({}, tmp_path)
    assert (stack.kind, stack.version) == ("native", "2.13.3")
    assert (stack.nki, stack.nki_version) == ("native", "0.7.0")
