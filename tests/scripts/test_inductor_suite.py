"""`scripts/conformance/inductor_suite.py`: what becomes of a test of the suite."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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

    def test_elsewhere(self):
        raise unittest.SkipTest("requires cuda")

    def test_generated_code(self):
        self.common(lambda x: x - 1, (torch.ones(3),))
        metrics = compile_fx.__module__
        self.assertNotIn("trnx", metrics)

    def test_wrong(self):
        self.assertEqual(1, 2)
"""


def test_what_becomes_of_each_test(tmp_path: Path) -> None:
    folder = tmp_path / "test" / "inductor"
    folder.mkdir(parents=True)
    (folder / "test_torchinductor.py").write_text(SUITE)
    asked = ["--checkout", str(tmp_path), "--json"]
    done = subprocess.run([sys.executable, SCRIPT, *asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["counts"] == {"passed": 2, "skipped": 1, "internals": 1, "not ours": 1}
    assert {rest["test"]: rest["status"] for rest in found["rest"]} == {
        "test_elsewhere": "skipped",
        "test_generated_code": "internals",
        "test_wrong": "not ours",
    }
    assert found["holds"]
