"""Kernels and scripts of `nki/examples`, each with inputs and a NumPy reference."""

from __future__ import annotations

import contextlib
import io
import itertools
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from modes import simulated

from trnx.simulator import load_module
from trnx.simulator.errors import FindingError
from trnx.simulator.frontend.twins import KernelSourceError

Case = tuple[str, Callable[[], str]]


def cases(checkout: Path) -> Iterator[Case]:
    """Name and test of every example; a kernel that has no test here is a failing case."""
    folder = checkout / "nki" / "examples"
    for file in sorted(folder.rglob("*.py")):
        place = str(file.relative_to(folder))
        source = file.read_text()
        for name in _kernel_names(source):
            test = KERNELS.get((file.name, name))
            label = f"examples/{place}::{name}"
            if test is None:
                yield label, _missing
            else:
                yield label, lambda file=file, name=name, test=test: test(file, name)
        is_script = "__main__" in source or "simulate(" in source
        # An example that needs a framework's device is known by its kernels alone.
        if is_script and "torch_xla" not in source and "jax" not in source:
            yield f"examples/{place} (script)", lambda file=file: _script(file)


def _kernel_names(source: str) -> list[str]:
    lines = source.splitlines()
    return [
        after.removeprefix("def ").partition("(")[0]
        for line, after in itertools.pairwise(lines)
        if line.strip() in ("@nki.jit", "@nki_jit")
    ]


def _missing() -> str:
    raise AssertionError("this script has no inputs for the kernel")


def _script(file: Path) -> str:
    path, argv = list(sys.path), sys.argv
    sys.argv = [str(file)]
    sys.path.insert(0, str(file.parent))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(file), run_name="__main__")
    finally:
        sys.path[:], sys.argv = path, argv
    return "its own assertions"


def _kernel(file: Path, name: str) -> Any:
    twin: ModuleType = load_module(file)
    return getattr(twin, name)


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def _close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def _add(file: Path, name: str) -> str:
    a, b = _random(4, 3), _random(4, 3) + 1
    _close(simulated(_kernel(file, name))(a, b), a + b)
    half = torch.ones(4, 3, dtype=torch.float16)
    result = simulated(_kernel(file, name))(half, half)
    assert torch.equal(result, half + half), "torch in, another result out"
    return "NumPy and torch"


def _add_tiled(file: Path, name: str) -> str:
    a, b = _random(256, 1024), _random(256, 1024) + 1
    _close(simulated(_kernel(file, name), "trn1")(a, b), a + b)
    return "NumPy"


def _exp(file: Path, name: str) -> str:
    a = _random(128, 512)
    _close(simulated(_kernel(file, name))(a), np.exp(a))
    return "NumPy"


def _split(file: Path, name: str) -> str:
    a = _random(4, 5)
    even, odd = simulated(_kernel(file, name))(a)
    _close(even, a[:, ::2])
    _close(odd, a[:, 1::2])
    return "NumPy"


def _pool(reduce: Callable[..., Any]) -> Callable[[Path, str], str]:
    def test(file: Path, name: str) -> str:
        a = _random(2, 6, 6)
        windows = a.reshape(2, 3, 2, 3, 2)
        _close(simulated(_kernel(file, name))(a, 2), reduce(windows, axis=(2, 4)))
        return "NumPy"

    return test


def _transpose(file: Path, name: str) -> str:
    a = np.random.default_rng(0).integers(-128, 127, (5, 12)).astype(np.int8)
    expected = a.reshape(5, 3, 4).transpose(0, 2, 1).reshape(5, 12)
    assert np.array_equal(simulated(_kernel(file, name))(a, (3, 4)), expected)
    return "NumPy"


def _matmul(m: int, k: int, n: int) -> Callable[[Path, str], str]:
    def test(file: Path, name: str) -> str:
        left, right = _random(k, m), _random(k, n)
        expected = left.astype(np.float64).T @ right
        _close(simulated(_kernel(file, name))(left, right), expected, 1e-3)
        return "NumPy"

    return test


def _scan(delta: Any, u: Any, a: Any, b: Any, c: Any) -> np.ndarray[Any, Any]:
    """The selective state space recurrence, in float64, one time step after the other."""
    delta, u, a, b, c = (np.asarray(value, np.float64) for value in (delta, u, a, b, c))
    batch, channels, length = delta.shape
    state = np.zeros((batch, channels, a.shape[1]))
    out = np.zeros((batch, channels, length))
    for t in range(length):
        decay = np.exp(delta[:, :, t, None] * a[None])
        state = decay * state + (delta[:, :, t] * u[:, :, t])[..., None] * b[:, None, :, t]
        out[:, :, t] = (state * c[:, None, :, t]).sum(-1)
    return out


def _mamba(file: Path, name: str) -> str:
    batch, channels, length, states = 1, 256, 512, 4
    delta, u = np.abs(_random(batch, channels, length)), _random(batch, channels, length)
    a = -np.abs(_random(channels, states))
    b, c = _random(batch, states, length), _random(batch, states, length) + 0.5
    _close(simulated(_kernel(file, name))(delta, u, a, b, c), _scan(delta, u, a, b, c), 1e-3)
    return "NumPy"


def _violation(file: Path, name: str) -> str:
    try:
        simulated(_kernel(file, name))(torch.ones(256, 512, dtype=torch.bfloat16))
    except FindingError as finding:
        if finding.location is None or finding.location.file != str(file.resolve()):
            raise AssertionError(f"the error does not name the example's line: {finding}") from None
        return f"refused as it must be: {type(finding).__name__}, line {finding.location.line}"
    raise AssertionError("the kernel was not refused")


def _no_python(file: Path, name: str) -> str:
    """A fragment that Python cannot import must be refused by name."""
    try:
        kernel = _kernel(file, name)
    except (KernelSourceError, ModuleNotFoundError) as error:
        return f"no runnable Python, refused as it must be: {type(error).__name__}"
    raise AssertionError(f"{kernel} was imported; give it inputs")


KERNELS: dict[tuple[str, str], Callable[[Path, str], str]] = {
    ("getting_started_baremetal.py", "nki_tensor_add_kernel"): _add,
    ("getting_started_jax.py", "nki_tensor_add_kernel"): _add,
    ("getting_started_torch.py", "nki_tensor_add_kernel"): _add,
    ("nki_simulate_example.py", "add_kernel"): _add,
    ("tensor_addition_nki_kernels.py", "nki_tensor_add"): _add_tiled,
    ("index-case-1.py", "tensor_split_kernel_"): _split,
    ("index-case-3.py", "tensor_maxpool_kernel_"): _pool(np.max),
    ("average_pool2d_nki_kernels.py", "tensor_avgpool_kernel"): _pool(np.mean),
    ("transpose2d_nki_kernels.py", "tensor_transpose2D_kernel_"): _transpose,
    ("layout-pass.py", "tensor_exp_kernel_"): _exp,
    ("layout-violation.py", "tensor_exp_kernel_"): _violation,
    ("layout-loop.py", "tensor_exp_kernel_"): _no_python,
    ("layout-dynamic-loop.py", "tensor_exp_kernel_"): _no_python,
    ("matrix_multiplication_nki_kernels.py", "nki_matmul_basic_"): _matmul(64, 128, 512),
    ("matrix_multiplication_nki_kernels.py", "nki_matmul_tiled_"): _matmul(256, 256, 512),
    ("matrix_multiplication_nki_kernels.py", "nki_matmul_hoist_load_"): _matmul(256, 256, 1024),
    ("matrix_multiplication_nki_kernels.py", "nki_matmul_block_free_dimension_"): _matmul(
        256, 256, 1024
    ),
    ("matrix_multiplication_nki_kernels.py", "nki_matmul_fully_optimized_"): _matmul(
        2048, 1024, 1024
    ),
    ("mamba_nki_kernels.py", "mamba_v1"): _mamba,
    ("mamba_nki_kernels.py", "mamba_v2"): _mamba,
    ("mamba_nki_kernels.py", "mamba_v3"): _mamba,
}
