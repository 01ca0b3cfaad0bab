"""A fresh process: loads a folder, runs it on saved inputs, and says what it saw as JSON.

It ends at once where anything is unpickled, where Dynamo, the passes or partition are called, and
where a file of the folder is compiled.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import trnx
from trnx.backend import compiler, programs
from trnx.nki_kernels.keys import key_of

folder = Path(sys.argv[1]).resolve()
saved = torch.load(folder.with_suffix(".saved"))
traced: Counter[Any] = Counter()
seen: list[str] = []


def forbid(event: str, args: tuple[Any, ...]) -> None:
    if event.startswith("pickle.") or (event == "marshal.loads" and seen):
        seen.append(event)
    elif event == "compile" and str(folder) in str(args[1]):
        seen.append(f"compile {args[1]}")
    elif event == "import" and args[1] and str(folder) in str(args[1]):
        seen.append(f"import {args[1]}")


def counted(kernel: Any, arguments: Any, **options: Any) -> Any:
    traced[kernel, key_of(arguments), options["target"]] += 1
    return trace(kernel, arguments, **options)


def planned(*_: Any) -> Any:
    seen.append("planned")


sys.addaudithook(forbid)
trace, programs.trace = programs.trace, counted
compiler.plan_graph = planned
model = trnx.load(folder, runner="simulator")
found = [model(*saved["args"], **saved["kwargs"]) for _ in range(2)][-1]
expected, exact = saved["expected"], saved["exact"]
assert found.keys() == expected.keys()
print(
    json.dumps(
        {
            "errors": [
                [float((values[k] - exact[k]).abs().max()) for values in (found, expected)]
                for k in expected
            ],
            "same": [
                (found[k].dtype, found[k].stride()) == (expected[k].dtype, expected[k].stride())
                for k in expected
            ],
            "seen": seen,
            "traced": sorted(traced.values()),
            "dynamo": sum(map(len, torch._dynamo.utils.counters.values())),
            "libraries": [name for name in ("transformers",) if name in sys.modules],
            "engines": [region.engine for region in trnx.report.last().regions],
        }
    )
)
