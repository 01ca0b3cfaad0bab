"""Two cores of one logical core, and loops: order, rendezvous, deadlock, failures."""

from __future__ import annotations

import threading
import warnings
from types import ModuleType

import pytest
import torch

from trnx.simulator import TensorSpec, simulate, trace
from trnx.simulator.errors import (
    DeadlockError,
    FindingWarning,
    IllegalInstructionError,
    UnorderedAccessError,
)


def test_sendrecv_exchanges_tiles(kernels: ModuleType) -> None:
    x = torch.randn(2, 5)
    assert torch.equal(simulate(kernels.exchanges[2])(x), x.flip(0))
    program = trace(kernels.exchanges, [TensorSpec.of(x)], grid=2)
    for _ in range(3):
        x = torch.randn(2, 5)
        assert torch.equal(program.run([x])[0], x.flip(0))
    assert {row.core for row in program.rows} == {0, 1}
    assert program.rows == trace(kernels.exchanges, [x], grid=2, values=True).rows


def test_a_barrier_orders_the_cores(kernels: ModuleType) -> None:
    x = torch.randn(2, 5)
    assert torch.equal(simulate(kernels.reads_the_other_half[2])(x, True), x.flip(0))


def test_a_barrier_that_one_core_misses_is_a_deadlock(kernels: ModuleType) -> None:
    before = threading.active_count()
    warn = ("shared-hbm-order",)
    with (
        pytest.warns(FindingWarning, match="core_barrier"),
        pytest.raises(DeadlockError, match=r"program 0 waits for \[1\]") as caught,
    ):
        trace(kernels.reads_the_other_half, [torch.randn(2, 5), False], grid=2, warn=warn)
    assert caught.value.location is not None
    assert caught.value.location.function == "reads_the_other_half"
    assert threading.active_count() == before


def test_one_program_has_no_peer(kernels: ModuleType) -> None:
    spec = TensorSpec.dense((2, 5), torch.float32)
    with pytest.raises(IllegalInstructionError, match="launch of 2 programs"):
        trace(kernels.exchanges, [spec])
    with (
        pytest.warns(FindingWarning, match="launch-grid"),
        pytest.raises(IllegalInstructionError, match="NeuronCore-v3"),
    ):
        trace(kernels.exchanges, [spec], grid=2, target="trn1", warn=("launch-grid",))


@pytest.mark.parametrize("what", ["its own tensor", "both", "an exchange"])
def test_meetings_that_order_a_tensor(kernels: ModuleType, what: str) -> None:
    x = torch.randn(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(simulate(kernels.meets_for[2])(x, what), x)
    with pytest.raises(UnorderedAccessError):
        simulate(kernels.meets_for[2])(x, "nothing")


def test_a_barrier_on_a_tile_is_disputed(kernels: ModuleType) -> None:
    x = torch.randn(2, 2)
    with pytest.warns(FindingWarning, match="legality-disputed.*isa.*bwmm_shard_on_I_mx") as caught:
        assert torch.equal(simulate(kernels.meets_for[2])(x, "a tile"), x)
    findings = [warning.message.finding for warning in caught]
    assert {finding.check for finding in findings} == {"legality-disputed"}
    assert all(finding.location.file.endswith("core_kernels.py") for finding in findings)


def test_a_barrier_on_another_tensor_is_doubtful(kernels: ModuleType) -> None:
    x = torch.randn(2, 2)
    with pytest.warns(FindingWarning, match="shared-hbm-order-disputed") as caught:
        assert torch.equal(simulate(kernels.meets_for[2])(x, "another tensor"), x)
    # Once for the two lines, however often they run.
    assert len(caught) == 1
    assert "Pass this tensor to nisa.core_barrier" in str(caught[0].message)


def test_gathered_rows_are_compared_by_value(kernels: ModuleType) -> None:
    x = torch.randn(8, 3)
    own = torch.tensor([[2], [0], [1], [3], [7], [4], [4], [5]], dtype=torch.int32)
    got = simulate(kernels.gathers_rows_of_its_own[2])(x, own)
    assert torch.equal(got, x[own[:, 0].to(torch.int64)])
    theirs = own.clone()
    theirs[5] = 3
    with pytest.raises(UnorderedAccessError, match="program 1 reads"):
        simulate(kernels.gathers_rows_of_its_own[2])(x, theirs)
    trace(kernels.gathers_rows_of_its_own, [x, theirs], grid=2)


def test_what_a_program_filled_in_a_loop_may_be_its_own(kernels: ModuleType) -> None:
    x = torch.randn(4, 3)
    assert torch.equal(simulate(kernels.reads_back_rows_of_a_loop[2])(x, 4, True), x)
    with pytest.raises(UnorderedAccessError, match="program 1 reads"):
        simulate(kernels.reads_back_rows_of_a_loop[2])(x, 4, False)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_body_finds_its_inputs_again(kernels: ModuleType, count: int) -> None:
    x = torch.randn(3, 4)
    assert torch.equal(simulate(kernels.swaps_in_a_loop)(x, count), x)
