"""What the processes of a job run: `ranks.py FOLDER TASK...` writes FOLDER/TASK-RANK.json."""

from __future__ import annotations

import datetime
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from sharded import WAYS, make_case, report_of, whole_gradients, worst
from stages import buckets, pipeline
from torch.distributed.device_mesh import init_device_mesh
from torch.utils import _pytree as pytree

import trnx
from trnx.jobs.devices import end_rank

_ops = torch.ops._c10d_functional


def sharded(folder: Path, way: str) -> dict[str, Any]:
    """A step of a sharded block against one process."""
    case = make_case()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = WAYS[way](case.blocks, mesh)
    found, graphs = report_of(model, case)
    torch.save(found, folder / f"{way}-{dist.get_rank()}.pt")
    gradients = whole_gradients(model)
    assert len(gradients) == len(case.gradients)
    return {
        "output": worst(found.output, model.local(case.output)),
        "input_gradient": worst(found.input_gradient, model.local(case.input_gradient)),
        "gradients": max(map(worst, gradients, case.gradients)),
        "graphs": graphs,
    }


# ---- functions of collectives -------------------------------------------------------------------


def _reduced_input(x: torch.Tensor) -> Any:
    dist.all_reduce(x)
    return x * 2


def _reduced_value(x: torch.Tensor) -> Any:
    y = x * 2
    dist.all_reduce(y)
    return y + x


def _in_place(x: torch.Tensor) -> Any:
    y = x * 2
    z = _ops.wait_tensor(_ops.all_reduce_(y, "sum", _world()))
    return y + z, x * 3


def _in_place_input(x: torch.Tensor) -> Any:
    _ops.wait_tensor(_ops.all_reduce_(x, "max", _world()))
    return x + 1


def _in_place_lists(x: torch.Tensor) -> Any:
    y, z = x * 2, x + 1
    for one in _ops.all_reduce_coalesced_([y, z], "sum", _world()):
        _ops.wait_tensor(one)
    return y, z.abs()


def _into_a_view(x: torch.Tensor) -> Any:
    y = x * 2
    _ops.wait_tensor(_ops.broadcast_(y[:2], 1, _world()))
    return y


def _coalesced(x: torch.Tensor) -> Any:
    a, b = functional.all_reduce_coalesced([x * 2, x + 1], "sum", dist.group.WORLD)
    return a + 1, b


def _gathered_and_scattered(x: torch.Tensor) -> Any:
    whole = _ops.wait_tensor(_ops.all_gather_into_tensor(x * 2, 2, _world()))
    return _ops.wait_tensor(_ops.reduce_scatter_tensor(whole, "sum", 2, _world())), whole + 1


def _exchanged(x: torch.Tensor) -> Any:
    return functional.all_to_all_single(x * 1.5, [2, 2], [2, 2], dist.group.WORLD) + 1


def _broadcast(x: torch.Tensor) -> Any:
    return functional.broadcast(x * 2, 0, dist.group.WORLD) + 1


def _written_after(x: torch.Tensor) -> Any:
    y = functional.all_reduce(x, "sum", dist.group.WORLD)
    x.mul_(3)
    return y + x


def _result_written(x: torch.Tensor) -> Any:
    begun = _ops.all_reduce(x * 3, "sum", _world())
    beside = x.abs()
    result = _ops.wait_tensor(begun)
    result.add_(1)
    return result, beside


def _both_returned(x: torch.Tensor) -> Any:
    begun = _ops.all_reduce(x * 3, "sum", _world())
    return begun, _ops.wait_tensor(begun)


def _not_waited_for(x: torch.Tensor) -> Any:
    return _ops.all_reduce(x.t() * 3, "sum", _world())


def _unused(x: torch.Tensor) -> Any:
    _ops.wait_tensor(_ops.all_reduce(x * 3, "sum", _world()))
    return x + 1


def _of_constants(x: torch.Tensor) -> Any:
    ones = torch.ones(2, 6) * (dist.get_rank() + 1)
    return _ops.wait_tensor(_ops.all_gather_into_tensor(ones, 2, _world())) + x


def _equal_ones(x: torch.Tensor) -> Any:
    a = functional.all_reduce(x, "sum", dist.group.WORLD)
    return a + functional.all_reduce(x, "sum", dist.group.WORLD)


_CASES: list[Callable[[torch.Tensor], Any]] = [
    _reduced_input, _reduced_value, _in_place, _in_place_input, _in_place_lists, _into_a_view,
    _coalesced, _gathered_and_scattered, _exchanged, _broadcast, _written_after, _result_written,
    _both_returned, _not_waited_for, _unused, _of_constants, _equal_ones,
]  # fmt: skip


def _world() -> str:
    return str(dist.group.WORLD.group_name)


def functions(folder: Path) -> dict[str, Any]:
    """Each function compiled against eager: results, inputs afterwards, shared storage."""
    del folder
    return {function.__name__: _compared(function, _input()) for function in _CASES} | {
        "bfloat16": _compared(_reduced_value, _input().bfloat16()),
        "empty": _compared(_reduced_value, torch.empty(0, 3)),
        "one row": _compared(_reduced_value, _input()[:1]),
        "strided": _compared(_reduced_value, _input().t()),
    }


def _input() -> torch.Tensor:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randn(4, 6, generator=generator)


def _compared(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> dict[str, Any]:
    torch._dynamo.reset()
    given, expected_given = x.clone(), x.clone()
    expected = [functional.wait_tensor(y) for y in pytree.tree_leaves(function(expected_given))]
    with trnx.collect_reports() as reports:
        compiled = torch.compile(
            function, backend="trnx", fullgraph=True, options={"select": "legal"}
        )
        found = pytree.tree_leaves(compiled(given))
    pairs = [*zip(found, expected, strict=True), (given, expected_given)]
    pointers = [y.untyped_storage().data_ptr() for y in found]
    wanted = [y.untyped_storage().data_ptr() for y in expected]
    return {
        "equal": all(
            torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride() for a, b in pairs
        ),
        "aliasing": _partners(pointers) == _partners(wanted),
        "engines": [region.engine for report in reports for region in report.regions],
        "on_others": [e.op for r in reports for e in r.fallbacks if "c10d" in e.op],
    }


def _partners(pointers: list[int]) -> list[int]:
    return [pointers.index(pointer) for pointer in pointers]


# ---- ranks that differ --------------------------------------------------------------------------


def other_plans(folder: Path) -> dict[str, Any]:
    """Ranks with other options have other plans, and the collectives of one order."""
    del folder
    rank = dist.get_rank()
    select = "none" if rank else "legal"

    def function(x: torch.Tensor, weight: torch.Tensor) -> Any:
        y = functional.all_reduce(x @ weight, "sum", dist.group.WORLD)
        z = functional.all_reduce((x.exp() * y).softmax(-1), "max", dist.group.WORLD)
        return functional.all_gather_single((y - z).sum(0), 0, dist.group.WORLD) * 2

    x, weight = _input(), torch.ones(6, 6)
    expected = function(x, weight)
    with trnx.collect_reports() as reports:
        found = torch.compile(function, backend="trnx", options={"select": select})(x, weight)
    engines = [region.engine for region in reports[0].regions]
    return {"worst": worst(found, functional.wait_tensor(expected)), "engines": engines}


def failure(folder: Path) -> dict[str, Any]:
    """Rank 1 fails between two collectives."""
    del folder

    def function(x: torch.Tensor, places: torch.Tensor) -> Any:
        y = functional.all_reduce(x, "sum", dist.group.WORLD)
        rows = torch.nn.functional.embedding(places, y)
        return functional.all_reduce(rows * 2, "sum", dist.group.WORLD) + 1

    torch.compile(function, backend="trnx")(_input(), torch.tensor([1, 3 + 4 * dist.get_rank()]))
    return {}


TASKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "buckets": buckets,
    "functions": functions,
    "pipeline": pipeline,
    "other_plans": other_plans,
    "failure": failure,
}


def main() -> None:
    """Run the tasks; the one that fails writes its traceback."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
    for task in sys.argv[2:]:
        torch._dynamo.reset()
        try:
            run = TASKS.get(task)
            answer = run(folder) if run is not None else sharded(folder, task)
        except Exception:
            answer = {"error": traceback.format_exc()}
            raise
        finally:
            (folder / f"{task}-{dist.get_rank()}.json").write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    end_rank(0)
