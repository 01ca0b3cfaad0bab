"""The compiled graphs of a sharded block over simulated ranks: `nki.collectives` in the place of
gloo, the values bit for bit."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from launching import run_job
from sharded import WAYS, Found, Sharded, make_case, run_step
from simulated import Meeting, run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from trnx.backend import compiler
from trnx.backend.executable import Executable
from trnx.backend.options import Options, make_options
from trnx.fx_passes.region import Plan

OPTIONS = make_options({"runner": "simulator"})


@dataclass
class Recorded:
    """The graphs of one rank: plans, and what they were called with."""

    model: Sharded
    plans: list[Plan] = field(default_factory=list)
    arguments: list[list[Any]] = field(default_factory=list)
    outputs: list[list[Any]] = field(default_factory=list)


@pytest.fixture(autouse=True)
def _no_group_is_left() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def recorded(way: str, rank: int, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """One step of a rank alone, whose collectives give nothing of use."""
    torch._dynamo.reset()  # what was compiled for another rank is not for this one
    dist.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
    case = make_case()
    found = Recorded(WAYS[way](case.blocks, init_device_mesh("cpu", (2,))))

    class Recorder(Executable):
        def __init__(self, plan: Plan, *args: Any) -> None:
            super().__init__(plan, *args)
            found.plans.append(plan)

        def __call__(self, args: list[Any]) -> list[Any]:
            found.arguments.append(list(args))
            outputs = super().__call__(args)
            found.outputs.append(list(outputs))
            return outputs

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "Executable", Recorder)
        run_step(found.model, case)
    dist.destroy_process_group()
    return found


def _memory(tensor: Any) -> Any:
    """What two tensors of the same elements share."""
    if not isinstance(tensor, torch.Tensor):
        return None
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def step_of_ranks(ranks: list[Recorded], options: Options) -> tuple[list[Found], list[str]]:
    """Forward and backward of all ranks together."""
    case = make_case()
    forward = [one.plans[0] for one in ranks]
    inputs = [copy.copy(one.arguments[0]) for one in ranks]
    outputs, first = run_ranks(forward, inputs, options)
    backward = [one.plans[1] for one in ranks]
    tangents = []
    for one, made in zip(ranks, outputs, strict=True):
        # What backward got in the recorded step says which results of forward are saved for it.
        places = {_memory(t): place for place, t in enumerate(one.outputs[0])}
        saved = [places.get(_memory(t)) for t in one.arguments[1]]
        assert sum(place is not None for place in saved) >= 4
        kept = [
            t if place is None else made[place]
            for t, place in zip(one.arguments[1], saved, strict=True)
        ]
        tangents.append(kept)
    grads, second = run_ranks(backward, tangents, options)
    assert case.output.shape[-1] == outputs[0][0].shape[-1]
    return [
        Found(y[0], torch.empty(0), [g for g in gradient if g is not None])
        for y, gradient in zip(outputs, grads, strict=True)
    ], first + second


@pytest.mark.parametrize("way", ["tensor", "sequence"])
def test_simulated_ranks_equal_gloo(
    way: str,
    gloo: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two ranks: a sum of two has one order, so the values are those of gloo."""
    ranks = [recorded(way, rank, monkeypatch) for rank in range(2)]
    steps, collectives = step_of_ranks(ranks, OPTIONS)
    assert len(collectives) >= 7
    for rank, found in enumerate(steps):
        expected = torch.load(gloo / f"{way}-{rank}.pt", weights_only=False)
        assert torch.equal(found.output, expected.output)
        wanted = [expected.input_gradient, *expected.local_gradients]
        for gradient in wanted:
            same = [g for g in found.local_gradients if g.shape == gradient.shape]
            assert any(torch.equal(g, gradient) for g in same), gradient.shape


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes with gloo found."""
    folder = tmp_path_factory.mktemp("gloo")
    run_job(folder, ["tensor", "sequence"])
    return folder


def test_a_rank_that_fails_ends_the_others() -> None:
    meeting = Meeting(2)
    meeting.abort()
    with pytest.raises(threading.BrokenBarrierError):
        meeting.exchange(0, torch.ops._c10d_functional.all_reduce.default, torch.ones(2), ("sum",))
