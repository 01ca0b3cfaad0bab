"""The entry through `torch.compile(backend="trnx")`: found by name, errors reach the user."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import BackendCompilerFailed

import trnx
from trnx.errors import UnknownOptionError, UnsupportedDeviceError, UnsupportedModeError


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def inner(error: BaseException) -> BaseException:
    """What Dynamo wrapped."""
    while isinstance(error, BackendCompilerFailed):
        error = error.inner_exception
    return error


class Block(torch.nn.Module):
    """A small transformer block."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, 4, width // 4)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(x)))


def test_the_backend_is_found_without_importing_trnx() -> None:
    code = (
        "import sys, torch\n"
        "f = torch.compile(lambda x: x.relu() + 1, backend='trnx')\n"
        "assert f(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]\n"
        "assert 'trnx.backend.entry' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_importing_trnx_is_lazy() -> None:
    code = "import sys, trnx; assert 'torch' not in sys.modules; assert 'explain' in dir(trnx)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_loads() -> None:
    assert all(getattr(trnx, name) is not None for name in trnx.__all__)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = trnx.nothing_like_it


@pytest.mark.parametrize("runner", ["simulator", "reference"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference_equals_eager(runner: str, mode: Callable[[], torch.no_grad]) -> None:
    torch.manual_seed(0)
    model, x = Block(), torch.randn(2, 10, 32)
    compiled = torch.compile(model, backend="trnx", fullgraph=True, options={"runner": runner})
    with mode():
        want, got = model(x), compiled(x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert got.stride() == want.stride()
    assert got.is_inference() == want.is_inference()


def test_one_compiled_function_serves_inference_mode_and_no_grad() -> None:
    compiled = torch.compile(lambda x: F.gelu(x * 2) @ x, backend="trnx")
    x = torch.randn(16, 16)
    with torch.inference_mode():
        first = compiled(x)
    with torch.no_grad():
        second = compiled(x)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert first.is_inference()
    assert not second.is_inference()


def test_an_unknown_option_reaches_the_user() -> None:
    compiled = torch.compile(torch.relu, backend="trnx", options={"tarqet": "trn1"})
    with pytest.raises(BackendCompilerFailed, match=r"tarqet.*valid options are target") as error:
        compiled(torch.ones(2))
    assert isinstance(inner(error.value), UnknownOptionError)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_a_mode_is_refused(mode: str) -> None:
    compiled = torch.compile(torch.relu, backend="trnx", mode=mode)
    with pytest.raises(BackendCompilerFailed, match="no mode") as error:
        compiled(torch.ones(2))
    assert isinstance(inner(error.value), UnsupportedModeError)


def test_the_default_mode_is_accepted() -> None:
    compiled = torch.compile(torch.relu, backend="trnx", mode="default")
    assert compiled(torch.tensor([-1.0, 1.0])).tolist() == [0.0, 1.0]


def test_a_tensor_on_another_device_is_refused() -> None:
    compiled = torch.compile(torch.relu, backend="trnx")
    with pytest.raises(BackendCompilerFailed, match=r"device 'meta'.*to\('cpu'\)") as error:
        compiled(torch.ones(2, device="meta"))
    assert isinstance(inner(error.value), UnsupportedDeviceError)


def test_a_tensor_made_on_another_device_is_refused_with_the_line() -> None:
    def made(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, torch.ones(2, device="meta") + 1

    compiled = torch.compile(made, backend="trnx")
    with pytest.raises(BackendCompilerFailed, match=r"test_entry\.py"):
        compiled(torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int64, torch.bool])
def test_dtypes_that_nki_lacks_run_elsewhere(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 1, 0]).to(dtype)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x == 1, x, torch.zeros_like(x)) == x

    assert torch.equal(torch.compile(function, backend="trnx")(x), function(x))


def test_fallback_error_names_op_and_line() -> None:
    compiled = torch.compile(
        lambda x: torch.linalg.qr(x)[0], backend="trnx", options={"fallback": "error"}
    )
    with pytest.raises(BackendCompilerFailed, match=r"linalg_qr.*test_entry\.py"):
        compiled(torch.randn(4, 4))


def test_a_default_device_does_not_reach_into_the_backend() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.gelu(x @ x), -1) + 1

    compiled = torch.compile(function, backend="trnx", options={"select": "legal"})
    x = torch.randn(8, 8)
    with torch.device("meta"):
        got = compiled(x)
    torch.testing.assert_close(got, function(x), rtol=1e-5, atol=1e-5)


def test_two_sets_of_options_do_not_meet() -> None:
    x = torch.randn(8, 8)
    for target in ("trn1", "trn2", "trn3"):
        with trnx.collect_reports() as reports:
            torch._dynamo.reset()
            torch.compile(lambda x: x @ x, backend="trnx", options={"target": target})(x)
        assert [report.target for report in reports] == [target]


def test_a_graph_break_works() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.relu() + 1
        torch._dynamo.graph_break()
        return y * 2

    x = torch.randn(5)
    assert torch.equal(torch.compile(function, backend="trnx")(x), function(x))
