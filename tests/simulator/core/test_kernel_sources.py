"""Kernel sources are found by what they import, wherever they are installed."""

from __future__ import annotations

import importlib
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import load, load_module, simulate
from trnx.simulator.frontend.kernel_sources import (
    Sources,
    _parsed_imports,
    _scanned_imports,
    is_nki,
)
from trnx.simulator.frontend.subset import subset_findings

COPY = """
    import nki.isa as nisa
    import nki.language as nl

    def copied(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out
    """
KERNEL = """
    import nki
    {imports}

    @nki.jit
    def kernel(x):
        return {copied}(x)
    """
# import statement of the kernel file, and how it then calls the helper
SPELLINGS = {
    "from_member": ("from ks_pack.parts.copies import copied", "copied"),
    "from_package": ("from ks_pack.parts import copies", "copies.copied"),
    "as_name": ("import ks_pack.parts.copies as c", "c.copied"),
    "dotted": (
        "import ks_pack.sizes\nimport ks_pack.parts.copies\nimport ks_pack.other\n"
        "assert ks_pack.sizes.WIDTH == ks_pack.other.WIDTH == 3",
        "ks_pack.parts.copies.copied",
    ),
    "relative": ("from .parts import copies\nfrom .sizes import WIDTH", "copies.copied"),
    "through_another": ("from ks_pack.through import copied", "copied"),
    "guarded": ("from ks_pack.guarded import copied", "copied"),
}

Write = Callable[..., Path]


@pytest.fixture(params=["site-packages", "dist-packages", "src"])
def installed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Write]:
    """Writes modules into a folder of that name, which is on sys.path; gives the folder."""
    folder = tmp_path / "lib" / str(request.param)
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(folder))

    def write(**modules: str) -> Path:
        for name, text in modules.items():
            file = folder / f"{name.replace('__', '/')}.py".replace("//", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            for parent in file.relative_to(folder).parents[:-1]:
                (folder / parent / "__init__.py").touch()
            file.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return folder

    yield write
    _forget("ks_")


def _forget(prefix: str) -> None:
    for name in [name for name in sys.modules if name.startswith(prefix)]:
        del sys.modules[name]


def _package(write: Write, spelling: str) -> Path:
    imports, copied = SPELLINGS[spelling]
    kernel = textwrap.dedent(KERNEL).format(imports=imports, copied=copied)
    return write(
        ks_pack__kernels=kernel,
        ks_pack__parts__copies=COPY,
        ks_pack__sizes="WIDTH = 3\n",
        ks_pack__other="from ks_pack.sizes import WIDTH\n",
        ks_pack__through="from .parts.copies import copied\n",
        ks_pack__guarded="""
            try:
                import nki.language
                from ks_pack.parts.copies import copied
            except ImportError:
                copied = None
            """,
    )


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_helpers_are_twins_wherever_they_are(installed: Write, spelling: str) -> None:
    folder = _package(installed, spelling)
    twin = load_module(folder / "ks_pack" / "kernels.py")
    x = torch.randn(3, 4)
    assert torch.equal(simulate(twin.kernel)(x), x)
    assert subset_findings(twin.kernel) == []
    assert not {"ks_pack.parts.copies", "ks_pack.through", "ks_pack.guarded"} & set(sys.modules)
    assert not any(map(is_nki, sys.modules))


def test_a_package_that_imports_its_kernels(installed: Write) -> None:
    """What else it holds cannot be imported as usual where there is no nki."""
    folder = installed(
        ks_eager__kernels="import nki\nfrom ks_eager.sizes import WIDTH\nimport ks_eager.sizes\n",
        ks_eager__sizes="WIDTH = 3\n",
    )
    (folder / "ks_eager" / "__init__.py").write_text("from ks_eager.kernels import WIDTH\n")
    twin = load_module(folder / "ks_eager" / "kernels.py")
    assert twin.WIDTH == twin.ks_eager.sizes.WIDTH == 3
    assert not any(is_nki(name) or name.startswith("ks_eager") for name in sys.modules)


def test_other_packages_are_imported_once_and_as_usual(installed: Write) -> None:
    folder = installed(
        ks_use="import nki\nimport ks_heavy\nimport ks_heavy.deep as deep\n",
        ks_heavy__deep="import ks_heavy.deeper\nLOADED = []\nLOADED.append(1)\n",
        ks_heavy__deeper="def later():\n    import nki\n",
    )
    (folder / "ks_heavy" / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\nimport typing\n"
        "if TYPE_CHECKING:\n    import nki\n"
        "if typing.TYPE_CHECKING:\n    from nki import jit\n"
    )
    one, two = load_module(folder / "ks_use.py"), load_module(folder / "ks_use.py")
    assert one.ks_heavy is two.ks_heavy is sys.modules["ks_heavy"]
    assert one.deep is two.deep is sys.modules["ks_heavy.deep"]
    assert one.deep.LOADED == [1]


def test_asking_executes_nothing(installed: Write) -> None:
    folder = installed(
        ks_asked__deep__kernels="import nki\n",
        ks_asked__deep__plain="import ks_asked.deep\n",
    )
    (folder / "ks_asked" / "__init__.py").write_text("raise RuntimeError('executed')\n")
    (folder / "ks_asked" / "deep" / "__init__.py").unlink()  # a package without one
    sources = Sources()
    found = sources.kernel_source("ks_asked.deep.kernels")
    assert found is not None
    assert found.origin == str(folder / "ks_asked/deep/kernels.py")
    assert sources.kernel_source("ks_asked.deep.plain") is None
    assert sources.kernel_source("ks_asked.deep.absent") is None
    assert "ks_asked" not in sys.modules


def test_a_folder_of_modules_may_change(installed: Write) -> None:
    folder = installed(ks_main="import nki\nimport ks_part\n", ks_part="VALUE = 1\n")
    assert load_module(folder / "ks_main.py").ks_part is sys.modules["ks_part"]
    _forget("ks_part")
    installed(ks_part="import nki.language as nl\nVALUE = 22\n")
    assert load_module(folder / "ks_main.py").ks_part.VALUE == 22


def test_helpers_and_kernels_in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "kernels.zip"
    kernel = KERNEL.format(imports="from ks_zip.copies import copied", copied="copied")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("ks_zip/__init__.py", "")
        file.writestr("ks_zip/copies.py", textwrap.dedent(COPY))
        file.writestr("ks_zip/kernels.py", textwrap.dedent(kernel))
    monkeypatch.syspath_prepend(str(archive))
    user = tmp_path / "user.py"
    user.write_text(textwrap.dedent(kernel))
    x = torch.randn(3, 4)
    twin = load_module(user)
    assert torch.equal(simulate(twin.kernel)(x), x)
    assert subset_findings(twin.kernel) == []

    nki = ModuleType("nki")  # as AWS's package, which is there when a kernel is imported as usual
    nki.jit = lambda function: function  # type: ignore[attr-defined]
    nki.__path__ = []
    for name in ("nki", "nki.isa", "nki.language"):
        module = nki if name == "nki" else ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        setattr(nki, name.rpartition(".")[2], module)
    kernels = importlib.import_module("ks_zip.kernels")
    assert torch.equal(simulate(kernels.kernel)(x), x)
    assert load(kernels.kernel) is load(kernels.kernel)
    assert subset_findings(kernels.kernel) == []
    _forget("ks_")


STATEMENTS = """
    '''Text: import in_text
    '''
    import a, b.c as d  # , comment
    import e; import f
    from g import (  # a (comment)
        h as i,
        j,  # )
    )
    from .k import l, \\
        m
    from . import n
    try: import o
    except ImportError:
        from p import q
    if True:
        import r
    elif s:
        import t
    with u:
        from v import w as x
    if TYPE_CHECKING:
        import not_this
    else:
        import y
    def function():
        import nor_this
    class Class:
        def method(self):
            from nor import this
    z = 1
    import aa
    async def other(): import not_either
    if typing.TYPE_CHECKING: from not_yet import anything
    if not TYPE_CHECKING:
        import bb
    """


def test_the_expression_finds_what_the_parser_finds() -> None:
    text = textwrap.dedent(STATEMENTS).encode()

    def flat(found: Iterator[tuple[str, list[str]]]) -> set[tuple[str, str]]:
        return {(base, member) for base, members in found for member in members or [""]}

    parsed = flat(_parsed_imports(text))
    assert len(parsed) == 17
    assert ("not_this", "") not in parsed
    # In text it may find more: then a package is looked through in vain.
    assert flat(_scanned_imports(text)) - {("in_text", "")} == parsed


def test_imports_of_our_own_files_are_found_without_parsing_them() -> None:
    import trnx.nki_kernels as package

    files = [file for folder in package.__path__ for file in Path(folder).rglob("*.py")]
    assert len(files) > 100
    for file in files:
        text = file.read_bytes()
        assert list(_scanned_imports(text)) == list(_parsed_imports(text)), file
