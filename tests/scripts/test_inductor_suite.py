"""`scripts/conformance/inductor_suite.py`: what becomes of a test of the suite."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "conformance" / "inductor_suite.py"
SUITE = """
import unittest

import torch
import torch._dynamo.testing
from torch._inductor.compile_fx import compile_fx
from torch.testing._internal.common_utils import TestCase


def check_model(self, model, inputs):
    def compiler(graph_module, example_inputs):
        return compile_fx(graph_module, example_inputs)

    torch._dynamo.reset()
    self.assertEqual(torch._dynamo.optimize(compiler)(model)(*inputs), model(*inputs))


def copy_tests(template, tests, suffix):
    for name in dir(template):
        if name.startswith("test_"):
            setattr(tests, f"{name}_{suffix}", getattr(template, name))


class CommonTemplate:
    def test_add(self):
        self.common(lambda x: x + 1, (torch.ones(3),))

    def test_double(self):
        self.common(lambda x: x * 2, (torch.ones(3),))

    def test_sum_in_another_order(self):
        torch.manual_seed(0)
        x, y = torch.randn(100, 1600), torch.randn(1600, 100)

        def model(x, y):
            if torch.compiler.is_compiling():
                return (x.double() @ y.double()).to(x.dtype)
            return x @ y

        self.common(model, (x * 100, y))

    def test_sizes(self):
        sizes = []

        def compiler(graph_module, example_inputs):
            sizes.extend(x for x in example_inputs if not isinstance(x, torch.Tensor))
            return graph_module

        torch._dynamo.optimize(compiler)(lambda x: x + 1)(torch.ones(3))
        if sizes:
            raise unittest.SkipTest("dynamic")

    def test_another_value(self):
        def model(x):
            return x + 1e-3 if torch.compiler.is_compiling() else x

        self.common(model, (torch.randn(100),))

    def test_elsewhere(self):
        raise unittest.SkipTest("requires cuda")

    def test_generated_code(self):
        self.common(lambda x: x - 1, (torch.ones(3),))
        metrics = compile_fx.__module__
        self.assertNotIn("trnx", metrics)

    def test_wrong(self):
        self.assertEqual(1, 2)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "test" / "inductor"
    folder.mkdir(parents=True)
    (folder / "test_torchinductor.py").write_text(SUITE)
    return tmp_path


def run(checkout: Path, *asked: str) -> Any:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--checkout", str(checkout), "--json", *asked],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_becomes_of_each_test(checkout: Path) -> None:
    found = run(checkout)
    assert found["counts"] == {"passed": 4, "skipped": 1, "internals": 1, "not ours": 2}
    assert {rest["test"]: rest["status"] for rest in found["rest"]} == {
        "test_elsewhere": "skipped",
        "test_generated_code": "internals",
        "test_another_value": "not ours",
        "test_wrong": "not ours",
    }
    assert found["holds"]


def test_sizes_are_symbols_where_that_is_asked_for(checkout: Path) -> None:
    found = run(checkout, "--dynamic", "--tests", "test_sizes|test_add")
    assert found["counts"] == {"passed": 1, "skipped": 1}
    assert found["rest"][0]["reason"] == "dynamic"
