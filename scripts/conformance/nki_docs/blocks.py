"""Code blocks in docstrings of nki.language and nki.isa, and how each of them is run."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import torch
from modes import simulated

from trnx.simulator import interactive

_BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:[ \t]+.*\n?|\n)+)", re.MULTILINE)
_NAMES = {"nki", "nl", "nisa"}


@dataclass(frozen=True)
class Block:
    """One code block: where it stands, its code, why it is not run if so, kernels it defines."""

    name: str
    code: str
    why_not: str
    functions: tuple[str, ...]


def find_blocks(checkout: Path) -> Iterator[Block]:
    """All blocks, in the order of the files."""
    for module in ("language", "isa"):
        source = (checkout / "nki/api/nki" / module / "__init__.py").read_text()
        yield from _blocks_of(ast.parse(source), f"nki.{module}")


def _blocks_of(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[Block]:
    for item in node.body:
        if not isinstance(item, ast.FunctionDef | ast.ClassDef):
            continue
        name = f"{prefix}.{item.name}"
        text = ast.get_docstring(item) or ""
        for index, match in enumerate(_BLOCK.finditer(text + "\n")):
            yield _block(f"{name} #{index}", textwrap.dedent(match.group(1)))
        if isinstance(item, ast.ClassDef):
            yield from _blocks_of(item, name)


def _block(name: str, code: str) -> Block:
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return Block(name, code, "no Python: it does not parse", ())
    why_not = ""
    if any(
        isinstance(node, ast.keyword | ast.Expr)
        and isinstance(node.value, ast.Constant)
        and node.value.value is ...
        for node in ast.walk(tree)
    ):
        why_not = "a sketch: ... stands for a value"
    elif not any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in _NAMES
        for node in ast.walk(tree)
    ):
        why_not = "pseudo-code of what an instruction computes: no call of NKI"
    kernels = tuple(
        item.name for item in tree.body if isinstance(item, ast.FunctionDef) and item.args.args
    )
    # A function among other statements is a loop's body, not a kernel.
    others = [n for n in tree.body if not isinstance(n, ast.FunctionDef | ast.Import)]
    return Block(name, code, why_not, () if others else kernels)


def run(block: Block, folder: Path) -> str:
    """Run one block; says what was compared."""
    if block.name in TWO_CORES:
        return _run_on_two_cores(block, folder)
    if block.functions:
        return KERNELS[block.functions[0]](_module(block.code, block.functions[0], folder))
    return _run_at_prompt(block)


def _preamble() -> dict[str, Any]:
    return {
        "nki": importlib.import_module("nki"),
        "nl": importlib.import_module("nki.language"),
        "nisa": importlib.import_module("nki.isa"),
    }


def _module(code: str, name: str, folder: Path) -> ModuleType:
    """The block as a file, so that its kernels have source; imports that it leaves out in front."""
    file = folder / f"block_{name}.py"
    lines = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n"
    if importlib.util.find_spec("pytest") is None:
        code = re.sub(r"^import pytest$", "", code, flags=re.MULTILINE)
    file.write_text(lines + code)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- at the prompt ----


def _run_at_prompt(block: Block) -> str:
    arrays = ARRAYS.get(block.name.split(" ")[0], dict)()
    tree = ast.parse(block.code)
    assertions = sum(isinstance(node, ast.Assert) for node in ast.walk(tree))
    # abs_max and abs_min came with the fourth generation.
    target = "trn3" if ".abs_m" in block.name else "trn2"
    with interactive(target) as session:
        scope = _preamble()
        for name, value in arrays.items():
            is_array = isinstance(value, np.ndarray)
            scope[name] = session.tensor(value) if is_array else value
        if "NkiTensor.ap" in block.name:
            # The offset that its indirect pattern takes.
            scope["idx"] = scope["nl"].full((1, 1), 1, dtype="int32")
        exec(compile(block.code, block.name, "exec"), scope)
        checked = CHECKS.get(block.name.split(" ")[0])
        if checked is not None:
            checked(Ran(arrays, scope, session))
    shapes = _check_shapes(block.code, scope)
    parts = [f"{assertions} assertions" if assertions else "", "NumPy" if checked else ""]
    parts += [f"{shapes} documented shapes" if shapes else ""]
    return ", ".join(part for part in parts if part) or "ran with all checks"


def _check_shapes(code: str, scope: dict[str, Any]) -> int:
    """A view's line that tells the shape it has must tell the truth."""
    count = 0
    lines = code.splitlines()
    pattern = re.compile(r"#.*?(?:shape:|shape becomes) \(([\d, ]+)\)")
    with interactive("trn2"):
        for number, line in enumerate(lines):
            told = pattern.search(line)
            if told is None:
                continue
            statement = line.split("#")[0].strip() or lines[number - 1].split("#")[0].strip()
            source = statement.partition(" = ")[2] if " = " in statement else statement
            shape = tuple(eval(source, scope).shape)
            expected = tuple(int(size) for size in told.group(1).split(",") if size.strip())
            if shape != expected:
                raise AssertionError(f"{source} has shape {shape}, told is {expected}")
            count += 1
    return count


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _indices(*shape: int, high: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, high, shape).astype(np.uint32)


def _squared_input() -> dict[str, Any]:
    return {"input_tensor": _random(128, 512), "out_tensor": np.zeros((128, 512), np.float32)}


def _while_tensors() -> dict[str, Any]:
    return {"data": np.array([[2.5]], np.float32), "count_input": np.array([[3]], np.int32)}


def _fori_tensors() -> dict[str, Any]:
    return {
        "N": 16,
        "data": _random(1, 16),
        "output": np.full((1, 16), 7, np.float32),
        "ub_input": np.array([[5]], np.int32),
    }


# What a block leaves open, by the function that it documents.
ARRAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "nki.language.NkiTensor.__getitem__": lambda: {"i": 3},
    "nki.language.copy": lambda: {"x_tensor": _random(128, 64), "y_tensor": _random(128, 512)},
    "nki.language.gather_flattened": lambda: {
        "data_tensor": _random(128, 512),
        "indices_tensor": _indices(128, 512, high=512),
        "actual_tensor": np.zeros((128, 512), np.float32),
    },
    **dict.fromkeys(
        [f"nki.language.{kind}_range" for kind in ("affine", "sequential", "static", "dynamic")],
        _squared_input,
    ),
    "nki.isa.VirtualRegister": _squared_input,
    "nki.language.fori_loop": _fori_tensors,
    "nki.language.while_loop": _while_tensors,
    "nki.language.shared_identity_matrix": lambda: {
        "expected_tensor": np.eye(128, dtype=np.float32),
        "actual_tensor": np.zeros((128, 128), np.float32),
    },
}


def _close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(
        np.asarray(actual).astype(np.float64), expected, rtol=tolerance, atol=tolerance
    )


class Ran:
    """A block that ran at the prompt: the arrays it was given and the names it left."""

    def __init__(self, arrays: dict[str, Any], scope: dict[str, Any], session: Any) -> None:
        self.arrays = arrays
        self._scope = scope
        self._session = session

    def values(self, name: str) -> torch.Tensor:
        """Values of the tensor that a name stands for."""
        values: torch.Tensor = self._session.values(self._scope[name])
        return values


def _check_square(ran: Ran) -> None:
    _close(ran.arrays["out_tensor"], ran.arrays["input_tensor"] ** 2)


def _check_copy(ran: Ran) -> None:
    expected = ran.arrays["x_tensor"].astype(np.float64).T @ ran.arrays["y_tensor"]
    _close(ran.values("result"), expected, 1e-4)


def _check_gather(ran: Ran) -> None:
    picked = np.take_along_axis(
        ran.arrays["data_tensor"], ran.arrays["indices_tensor"].astype(int), 1
    )
    _close(ran.arrays["actual_tensor"], picked)


def _check_fori(ran: Ran) -> None:
    expected = np.zeros((1, 16))
    expected[:, :5] = ran.arrays["data"][:, :5]
    _close(ran.arrays["output"], expected)


def _check_while(ran: Ran) -> None:
    _close(ran.values("acc"), 7.5)


def _check_softmax(ran: Ran) -> None:
    _close(ran.values("result"), 1 / 512)


def _check_rms_norm(ran: Ran) -> None:
    _close(ran.values("result"), 2.0 / np.sqrt(4.0 + 1e-6))


def _check_rand(ran: Ran) -> None:
    values = ran.values("a")
    assert bool(((values >= 0) & (values < 1)).all()), "a value outside of [0, 1)"
    assert len(values.unique()) > 1000, "the values repeat"


CHECKS: dict[str, Callable[[Ran], None]] = {
    "nki.language.copy": _check_copy,
    "nki.language.gather_flattened": _check_gather,
    "nki.language.fori_loop": _check_fori,
    "nki.language.while_loop": _check_while,
    "nki.language.softmax": _check_softmax,
    "nki.language.rms_norm": _check_rms_norm,
    "nki.language.rand": _check_rand,
    "nki.isa.VirtualRegister": _check_square,
    **{name: _check_square for name in ARRAYS if name.endswith("_range")},
}


# ---- kernels ----


def _dma_gather(module: ModuleType) -> str:
    data, rows = _random(300, 64), _indices(128, 1, high=300)
    _close(simulated(module.indirect_gather_kernel)(data, rows), data[rows[:, 0]])
    return "NumPy"


def _dma_scatter(module: ModuleType) -> str:
    data, output = _random(128, 64), np.zeros((300, 64), np.float32)
    rows = np.random.default_rng(2).permutation(300)[:128].astype(np.uint32)[:, None]
    expected = output.copy()
    expected[rows[:, 0]] = data
    _close(simulated(module.indirect_scatter_kernel)(data, rows, output), expected)
    return "NumPy"


def _matmul(module: ModuleType) -> str:
    left, right = _random(512, 128), _random(512, 256)
    result = simulated(module.nc_matmul_accumulate_kernel)(left, right)
    _close(result, left.astype(np.float64).T @ right, 1e-4)
    return "NumPy"


def _gather_transpose(module: ModuleType) -> str:
    # Two-byte elements: the documented condition of an indirect DMA transpose.
    data = _random(256, 128).astype(ml_dtypes.bfloat16)
    rows = _indices(128, 1, high=256)
    expected = data[rows.T.flatten()].T.astype(np.float32)
    _close(simulated(module.gather_transpose_kernel)(data, rows), expected)
    return "NumPy"


def _gather_transpose_2d(module: ModuleType) -> str:
    data = _random(512, 128).astype(ml_dtypes.bfloat16)
    rows = _indices(128, 2, high=512)
    expected = data[rows.T.flatten()].T.astype(np.float32)
    _close(simulated(module.gather_transpose_2d_kernel)(data, rows), expected)
    return "NumPy"


def _gather_transpose_4d(module: ModuleType) -> str:
    data = _random(256, 1, 3, 64).astype(ml_dtypes.bfloat16)
    rows = _indices(128, 2, high=256)
    expected = data[rows.T.flatten()].transpose(3, 1, 2, 0).astype(np.float32)
    result = simulated(module.gather_transpose_4d_kernel)(data, rows)
    _close(result, expected.reshape(result.shape))
    return "NumPy"


def _activate2(module: ModuleType) -> str:
    data = _random(128, 512)
    wide = torch.from_numpy(data).double() * 2.0 + 0.5
    expected = torch.nn.functional.gelu(wide).numpy()
    kernel = module.activate2_scale_bias_kernel
    _close(simulated(kernel, "trn3")(data), expected, 1e-5)
    return "NumPy, on trn3"


def _nonzero(module: ModuleType) -> str:
    data = (np.random.default_rng(3).random((128, 32)) < 0.4).astype(np.float32)
    # The kernel's result lies in private memory, of which only some rows are written: read here.
    with interactive("trn2") as session:
        tensor = session.tensor(data)
        # On the device the other rows are whatever the memory held.
        result = _with_written_rows(session, module.nonzero_with_count_kernel, tensor)
    for row in range(0, 128, 16):
        found = np.flatnonzero(data[row])
        expected = [*found, *[-1] * (32 - len(found)), len(found)]
        _close(result[row], expected)
    return "NumPy"


def _with_written_rows(session: Any, kernel: Callable[..., Any], tensor: Any) -> Any:
    """Run `kernel` where new integer tensors in SBUF are filled first: it copies rows that the
    instruction leaves as they were.
    """
    scope = kernel.__globals__
    language = scope["nl"]
    filled = ModuleType("nl")
    vars(filled).update(vars(language))

    def ndarray(shape: Any, dtype: Any, buffer: Any = language.sbuf, **options: Any) -> Any:
        new = language.ndarray(shape, dtype, buffer, **options)
        if buffer is language.sbuf:
            scope["nisa"].memset(new, 0)
        return new

    filled.ndarray = ndarray  # type: ignore[attr-defined]
    scope["nl"] = filled
    return session.values(kernel(tensor))


def _topk(module: ModuleType) -> str:
    data = _random(16, 3).astype(ml_dtypes.bfloat16)
    held = torch.from_numpy(data.astype(np.float32)).bfloat16()
    with interactive("trn2") as session:
        values, places = module.topk_kernel(session.tensor(held))
        values, places = session.values(values), session.values(places)
    snake = data.astype(np.float32).T.flatten()[:42]
    largest = np.sort(snake)[-8:]
    for row in range(16):
        _close(values[row].float(), largest)
        _close(snake[places[row].to(torch.int64).numpy()], largest)
    return "NumPy"


KERNELS: dict[str, Callable[[ModuleType], str]] = {
    "indirect_gather_kernel": _dma_gather,
    "indirect_scatter_kernel": _dma_scatter,
    "nc_matmul_accumulate_kernel": _matmul,
    "gather_transpose_kernel": _gather_transpose,
    "gather_transpose_2d_kernel": _gather_transpose_2d,
    "gather_transpose_4d_kernel": _gather_transpose_4d,
    "activate2_scale_bias_kernel": _activate2,
    "nonzero_with_count_kernel": _nonzero,
    "topk_kernel": _topk,
}


# ---- two cores ----

TWO_CORES = ("nki.isa.core_barrier #0", "nki.isa.sendrecv #0")


def _run_on_two_cores(block: Block, folder: Path) -> str:
    """The block as the body of a kernel of two programs; its uninitialised source tiles are filled
    with the program's number.
    """
    body = re.sub(
        r"^(\s*)(core\d_data|send_data) = (.*)$",
        r"\1\2 = \3\n\1nisa.memset(\2, nl.program_id() + 1)",
        block.code,
        flags=re.MULTILINE,
    )
    shared = "shared_tensor" if "core_barrier" in block.name else "gathered"
    head = "batch_size, hidden_dim, core_id = 64, 32, nl.program_id()\n"
    tail = ""
    if shared == "gathered":
        head += "gathered = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.shared_hbm)\n"
        tail = "nisa.dma_copy(dst=gathered[nl.ds(core_id * 64, 64), :], src=recv_buffer)\n"
    inside = textwrap.indent(head + body + "\n" + tail + f"return {shared}\n", "    ")
    code = f"from nki.isa import core_barrier, sendrecv\n@nki.jit\ndef example(unused):\n{inside}"
    kernel = _module(code, block.name.split(" ")[0].rpartition(".")[2], folder).example
    result = simulated(kernel, "trn2", grid=2)(np.zeros((1, 1), np.float32))
    half = len(result) // 2
    first, second = (1, 2) if shared == "shared_tensor" else (2, 1)
    _close(result[:half], first)
    _close(result[half:], second)
    return "NumPy, two programs"
