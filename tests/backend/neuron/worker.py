"""The process on the fakes: a function's name and arguments in, what it returns out, as JSON."""

from __future__ import annotations

import json
import os
import sys
import traceback

# Results go where stdout was; what libraries print goes to stderr.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch  # noqa: E402  loads the fakes, as torch loads the real packages

torch.set_num_threads(1)
import edge_cases  # noqa: E402
import failures  # noqa: E402
import fake_facts  # noqa: E402
import handed_over  # noqa: E402
import neuron_device  # noqa: E402
import on_fakes  # noqa: E402
from nki import _launch  # noqa: E402

_FUNCTIONS = {**vars(edge_cases), **vars(failures), **vars(fake_facts), **vars(on_fakes)}

for line in sys.stdin:
    name, args = json.loads(line)
    torch._dynamo.reset()
    handed_over.graphs.clear()
    neuron_device.calls.clear()
    _launch.refused.clear()
    try:
        answer = {"value": _FUNCTIONS[name](*args)}
    except BaseException:  # noqa: BLE001  the test shows it
        answer = {"error": traceback.format_exc()}
    print(json.dumps(answer), file=_answers, flush=True)
