"""Products of register loops that add up, or that a kernel may believe to add up."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import load_module, simulate
from trnx.simulator.errors import FindingWarning, UninitialisedReadError


@pytest.fixture(scope="module")
def products() -> ModuleType:
    return load_module(Path(__file__).with_name("psum_loop_kernels.py"))


def _arguments(turns: int) -> list[torch.Tensor]:
    a, b = torch.randn(4, 33, 20), torch.randn(4, 33, 17)
    return [a, b, torch.tensor([turns], dtype=torch.int32)]


@pytest.mark.parametrize("name", ["started_before", "read_in_each_turn"])
@pytest.mark.parametrize("turns", [1, 4])
def test_turns_add_up(products: ModuleType, name: str, turns: int) -> None:
    a, b, count = _arguments(turns)
    got = simulate(getattr(products, name))(a, b, count)
    torch.testing.assert_close(got, torch.einsum("tkm,tkn->mn", a[:turns], b[:turns]))


def test_a_group_that_every_turn_starts_is_warned_of(products: ModuleType) -> None:
    with pytest.warns(FindingWarning, match="the last turn alone") as caught:
        simulate(products.inferred)(*_arguments(3))
    finding = caught[0].message.finding  # type: ignore[union-attr]
    assert finding is not None
    assert finding.check == "legality-disputed"
    line = Path(products.__file__).read_text().splitlines()[finding.location.line - 1]
    assert "nisa.nc_matmul(" in line


def test_a_product_that_is_added_to_what_no_turn_wrote(products: ModuleType) -> None:
    a, b, count = _arguments(2)
    got = simulate(products.added_behind)(a, b, count)
    torch.testing.assert_close(got, a[1].t() @ b[1] + a[0].t() @ b[0])
    with pytest.raises(UninitialisedReadError, match="the loop made no turn"):
        simulate(products.added_behind)(a, b, count * 0)
