"""One process of `inductor_suite.py`: runs tests of the suite with a backend in Inductor's place.

    python inductor_suite_worker.py CHECKOUT BACKEND static|dynamic < names

Prints "ready", then a line of JSON for each test: its name, "passed", "skipped" or "failed", and
why; of a parametrised one, the worst of its cases. What the tests themselves print is dropped.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import resource
import sys
import unittest
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch._dynamo.backends.registry as registry
from inductor_suite import MODULE, SUITE, test_sources
from torch.utils._pytree import tree_leaves, tree_map

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from suites.exact import is_as_exact

INDUCTOR = "inductor"
READY = "ready"
MEMORY_BYTES = 8 << 30


def replace_inductor(suite: ModuleType, backend: str) -> None:
    """`backend` wherever the tests compile with Inductor; its modes and options are left out."""
    # Loads all backends; else the first compilation does, and finds the name taken.
    registry.lookup_backend(INDUCTOR)
    chosen = registry.lookup_backend(backend)
    registry._COMPILER_FNS[INDUCTOR] = chosen
    suite.__dict__["compile_fx"] = chosen
    compile_ = torch.compile

    def replaced(
        model: Callable[..., Any] | None = None,
        *,
        backend: Any = INDUCTOR,
        mode: str | None = None,
        options: Any = None,
        **settings: Any,
    ) -> Any:
        if backend == INDUCTOR:
            return compile_(model, backend=chosen, **settings)
        return compile_(model, backend=backend, mode=mode, options=options, **settings)

    torch.compile = replaced


def forgive_rounding(check_model: Callable[..., None]) -> Callable[..., None]:
    """`check_model`, to which results that are as exact as eager's are close to eager's."""

    def check(self: unittest.TestCase, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> None:
        doubled = tree_map(_double, (list(inputs), kwargs.get("kwargs") or {}))
        assert_equal = self.assertEqual

        def compare(actual: Any, expected: Any, *args: Any, **kwargs: Any) -> None:
            try:
                assert_equal(actual, expected, *args, **kwargs)
            except AssertionError:
                if not _are_as_exact(actual, expected, model, doubled):
                    raise

        with mock.patch.object(self, "assertEqual", compare):
            check_model(self, model, inputs, *args, **kwargs)

    return check


def _double(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().double() if value.dtype == torch.float32 else value.detach().clone()


def _are_as_exact(actual: Any, expected: Any, model: Any, doubled: tuple[Any, Any]) -> bool:
    """Whether float32 results have the layout of eager's, and errors like those of eager's."""
    wide = copy.deepcopy(model).double() if isinstance(model, torch.nn.Module) else model
    try:
        exact = tree_leaves(wide(*doubled[0], **doubled[1]))
    except (RuntimeError, TypeError):  # float32 is written into the model
        return False
    found, wanted = tree_leaves(actual), tree_leaves(expected)
    if not len(found) == len(wanted) == len(exact):
        return False
    return all(_is_as_exact(a, e, x) for a, e, x in zip(found, wanted, exact, strict=True))


def _is_as_exact(actual: Any, expected: Any, exact: Any) -> bool:
    if not all(isinstance(value, torch.Tensor) for value in (actual, expected, exact)):
        return bool(actual == expected)
    one, other = ((x.shape, x.dtype, x.stride()) for x in (actual, expected))
    if one != other or expected.dtype != torch.float32:
        return torch.equal(actual, expected)
    return is_as_exact(actual, expected, exact)


def load(checkout: Path) -> tuple[ModuleType, type[unittest.TestCase]]:
    """The suite, and its tests for the CPU."""
    sys.path.insert(0, str(checkout / SUITE))
    suite = importlib.import_module(MODULE)
    body = {"common": forgive_rounding(suite.check_model), "device": "cpu"}
    tests: type[unittest.TestCase] = type("CpuTests", (suite.TestCase,), body)
    suite.copy_tests(suite.CommonTemplate, tests, "cpu")
    return suite, tests


def cases(tests: type[unittest.TestCase], name: str, written: Collection[str]) -> list[str]:
    """The test itself, or the cases that a parametrised one was replaced by."""
    alone = f"{name}_cpu"
    others = {f"{other}_cpu" for other in written}
    made = [n for n in dir(tests) if n.startswith(f"{name}_") and n not in others]
    return [alone] if hasattr(tests, alone) else made


def outcome(result: unittest.TestResult) -> tuple[str, str]:
    """What became of a test, and the end of what was said."""
    wrong = [text for _, text in (*result.failures, *result.errors)]
    if not result.testsRun:
        return "skipped", "has no case for the CPU"
    if wrong or result.unexpectedSuccesses:
        return "failed", (wrong or ["unexpected success"])[0][-2000:]
    if result.skipped:
        return "skipped", result.skipped[0][1]
    return "passed", ""


def main() -> None:
    """Run the tests named on the standard input."""
    checkout, backend, sizes = sys.argv[1:]
    report = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    torch.set_num_threads(1)
    names = sys.stdin.read().split()
    suite, tests = load(Path(checkout))
    sources = test_sources(Path(checkout))
    replace_inductor(suite, backend)
    torch._dynamo.config.assume_static_by_default = sizes == "static"
    print(READY, file=report, flush=True)
    # The suite tells here why it cannot be loaded; what tests write is of no interest.
    os.dup2(1, 2)
    for name in names:
        result = unittest.TestResult()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for case in cases(tests, name, sources):
                tests(case).run(result)
        status, reason = outcome(result)
        print(json.dumps({"test": name, "status": status, "reason": reason}), file=report)
        report.flush()


if __name__ == "__main__":
    main()
