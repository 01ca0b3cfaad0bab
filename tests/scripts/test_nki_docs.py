"""The conformance script on a small documentation: what passes, what fails, the exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LANGUAGE = '''\
def add(x, y):
    """Add.

    .. code-block:: python

        import nki.language as nl
        a = nl.full((4, 8), 3.0, dtype=nl.float32)
        assert nl.equal(nl.add(a, 2.0), nl.full((4, 8), {expected}, dtype=nl.float32))

    .. code-block:: python

        for i in range(n):
            out[i] = x[i] + y[i]
    """
'''
EXAMPLE = """\
import nki
import nki.language as nl


@nki.jit
def {name}(a_input, b_input):
    out = nl.ndarray(a_input.shape, dtype=a_input.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.add(nl.load(a_input), nl.load(b_input)))
    return out
"""


@pytest.mark.parametrize(
    ("expected", "kernel", "counts"),
    [
        ("5.0", "nki_tensor_add_kernel", (2, 0)),
        ("6.0", "nki_tensor_add_kernel", (1, 1)),
        ("5.0", "kernel_without_inputs", (1, 1)),
    ],
)
def test_exit_status_and_counts(
    tmp_path: Path, expected: str, kernel: str, counts: tuple[int, int]
) -> None:
    api = tmp_path / "nki" / "api" / "nki"
    examples = tmp_path / "nki" / "examples"
    for folder in (api / "language", api / "isa", examples):
        folder.mkdir(parents=True)
    (api / "language" / "__init__.py").write_text(LANGUAGE.format(expected=expected))
    (api / "isa" / "__init__.py").write_text("")
    (examples / "getting_started_torch.py").write_text(EXAMPLE.format(name=kernel))
    script = ROOT / "scripts" / "conformance" / "nki_docs" / "run.py"
    done = subprocess.run(
        [sys.executable, str(script), "--checkout", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["passed"], found["failed"]) == counts, done.stdout + done.stderr
    assert found["no code"] == 1
    assert done.returncode == (0 if counts[1] == 0 else 1)
