"""Attention whose logarithms of the sums of weights nobody reads: the same result, sooner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from launched import simulated

import trnx
from trnx.nki_kernels.kernels.attention._host import make_inputs

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "direct_kernel": ((1, 2, 384, 384, 64), {"dtype": BF16, "causal": True}),
    "long_kernel": ((1, 2, 512, 512, 64), {"dtype": F16, "causal": True}),
    "decode_kernel": ((2, 4, 1, 1100, 32), {"dtype": BF16, "sources": 2}),
    "sdpa_kernel": ((2, 3, 129, 150, 40), {"dtype": F32, "mask": "bool"}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_the_same_and_there_sooner(forward: Any, name: str) -> None:
    sizes, options = CASES[name]
    values = make_inputs(torch.Generator().manual_seed(2), *sizes, **options)
    alone = values | {"gives_logs": False}
    assert forward.kernel(alone) == name
    (out,) = simulated(forward.spec, alone)
    assert torch.equal(out, forward.run(values)[0])
    assert forward.profile(alone).total_seconds < forward.profile(values).total_seconds


def _predicted(function: Callable[..., Any], *inputs: torch.Tensor) -> float:
    """Seconds of the forward region."""
    torch._dynamo.reset()
    profile: Any = trnx.profile(torch.compile(function, backend="trnx"), *inputs, target="trn2")
    assert profile.regions[0].kernel == "sdpa"
    return float(profile.regions[0].seconds)


def test_inference_does_not_compute_them() -> None:
    q = torch.randn(1, 2, 256, 64).to(BF16)
    with torch.no_grad():
        inference = _predicted(F.scaled_dot_product_attention, q, q, q)
    trained = q.clone().requires_grad_()
    assert inference < _predicted(F.scaled_dot_product_attention, trained, trained, trained)
