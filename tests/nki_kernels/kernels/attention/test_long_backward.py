"""The kernel of the gradients of long attention: where it is chosen, its values and its traffic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from launched import bindings, launch_of, simulated, traced

from trnx.nki_kernels import canonical_ops, registry
from trnx.nki_kernels.kernels.attention._host import make_inputs
from trnx.simulator import simulate, trace
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.timing.profile import predicted_seconds

BACKWARD = registry.kernels()["sdpa_backward"]
BF16 = torch.bfloat16
TWO = replace(hardware("trn2"), cores=2)


def saved(*shape: int, seed: int = 11, **options: Any) -> dict[str, Any]:
    """The bindings of `sdpa_backward`."""
    generator = torch.Generator().manual_seed(seed)
    values = make_inputs(generator, *shape, **({"dtype": BF16} | options))
    return with_results(values, generator)


def with_results(values: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    out, lse = canonical_ops.sdpa(**values)
    grad_out = torch.randn(out.shape, generator=generator).to(out.dtype)
    return values | {"grad_out": grad_out, "out": out, "lse": lse, "mask_grad": False}


def unsaved(*shape: int, **options: Any) -> dict[str, Any]:
    """The same without values."""
    values = make_inputs(torch.Generator(), *shape, **({"dtype": BF16} | options))
    out = torch.empty((*values["q"].shape[:3], values["v"].shape[3]), dtype=values["q"].dtype)
    lse = torch.empty(out.shape[:3])
    return values | {"grad_out": out, "out": out, "lse": lse, "mask_grad": False}


def is_long(values: dict[str, Any], target: str) -> bool:
    return bool(launch_of(BACKWARD, values, target).kernel.__name__ == "long_backward_kernel")


def gradients(values: dict[str, Any], target: str = "trn2") -> tuple[torch.Tensor, ...]:
    assert is_long(values, target)
    return simulated(BACKWARD, values, target)


def exact(values: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """The gradients in float64."""
    q, k, v = (values[name].double().requires_grad_() for name in ("q", "k", "v"))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * values["scale"]
    if values["is_causal"]:
        below = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if values["window"]:
            below = below.triu(1 - values["window"])
        scores = scores.masked_fill(~below, -torch.inf)
    if values["attn_mask"] is not None:
        scores = scores.masked_fill(~values["attn_mask"], -torch.inf)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    out = weights @ v.repeat_interleave(group, 1)
    return torch.autograd.grad(out, (q, k, v), values["grad_out"].double())


def gradients_by_two(values: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """By both cores of a logical one."""
    launch = BACKWARD.launch(bindings(values), TWO)
    assert (launch.kernel.__name__, launch.grid, launch.cores) == ("long_backward_kernel", 2, 2)
    names = iter(launch.tensor_names)
    operands = [values[next(names)] if isinstance(a, TensorSpec) else a for a in launch.arguments]
    results: tuple[torch.Tensor, ...] = simulate(launch.kernel, grid=2)(*operands)
    return results


def assert_within_twice_of_eager(
    values: dict[str, Any], target: str = "trn2", run: Callable[..., Any] | None = None
) -> None:
    """Against float64, with eager's own error as the measure, or one rounding of the result."""
    results = gradients(values, target) if run is None else run(values)
    for own, wanted, eager in zip(
        results, exact(values), BACKWARD.reference(**values), strict=False
    ):
        assert own.dtype is values["q"].dtype
        unit = torch.finfo(own.dtype).eps / 2 * wanted.abs().max().item()
        error = max((eager.double() - wanted).abs().max().item(), unit)
        assert (own.double() - wanted).abs().max().item() <= 2 * error


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_gradients(dtype: torch.dtype, causal: bool, target: str) -> None:
    values = saved(2, 2, 640, 640, 64, dtype=dtype, causal=causal)
    assert_within_twice_of_eager(values, target)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("width", [1, 40, 96, 128])
def test_gradients_of_every_width(width: int, causal: bool) -> None:
    assert_within_twice_of_eager(saved(1, 1, 512, 640, width, causal=causal))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sources", [1, 2])
def test_heads_that_share_keys(sources: int, causal: bool) -> None:
    values = saved(2, 4, 512, 512, 16, sources=sources, causal=causal)
    assert_within_twice_of_eager(values)


@pytest.mark.parametrize(
    ("batch", "heads", "sources"),
    [(1, 2, 1), (1, 4, 1), (3, 4, 1), (1, 6, 3), (2, 2, 1), (1, 3, 1)],
)
@pytest.mark.parametrize(("length", "depth"), [(640, 512), (512, 768)])
def test_two_cores_share_heads(
    batch: int, heads: int, sources: int, length: int, depth: int
) -> None:
    """Those of keys, or where these are odd the query heads of each, if they are even."""
    values = saved(batch, heads, length, depth, 32, sources=sources, causal=True, values=16)
    assert_within_twice_of_eager(values, run=gradients_by_two)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("length", "depth"), [(1152, 640), (640, 1280), (512, 1024)])
def test_other_lengths_of_queries_and_keys(length: int, depth: int, causal: bool) -> None:
    assert_within_twice_of_eager(saved(1, 2, length, depth, 32, causal=causal, values=16))


def test_keys_after_the_last_query_have_no_gradient() -> None:
    _, dk, dv, _ = gradients(saved(1, 2, 640, 1280, 16, causal=True))
    assert not dk[:, :, 640:].any()
    assert not dv[:, :, 640:].any()


@pytest.mark.parametrize("causal", [True, False])
def test_large_scores(causal: bool) -> None:
    """Logits of 1e4 and more: what is hidden overflows before it is cleared."""
    generator = torch.Generator().manual_seed(2)
    values = make_inputs(generator, 1, 2, 512, 640, 32, dtype=BF16, causal=causal)
    values["k"][:, :, 100:300] *= 400
    values["q"][:, :, 200:400] *= 20
    values = with_results(values, generator)
    assert all(x.isfinite().all() for x in gradients(values))
    assert_within_twice_of_eager(values)


@pytest.mark.parametrize("window", [100, 129, 257, 600])
def test_windows(window: int) -> None:
    assert_within_twice_of_eager(saved(1, 1, 1152, 1152, 16, causal=True, window=window))


@pytest.mark.parametrize(("length", "depth", "window"), [(640, 1280, 200), (1152, 640, 600)])
def test_windows_of_other_lengths(length: int, depth: int, window: int) -> None:
    values = saved(1, 2, length, depth, 32, sources=1, causal=True, window=window)
    assert_within_twice_of_eager(values)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize(("causal", "window"), [(False, 0), (True, 0), (True, 150)])
def test_padding(causal: bool, window: int, target: str) -> None:
    """Of keys whose scores would overflow, and of a whole batch entry."""
    generator = torch.Generator().manual_seed(3)
    options: dict[str, Any] = {"causal": causal, "window": window, "mask": "keys", "sources": 1}
    values = make_inputs(generator, 2, 2, 512, 640, 32, dtype=BF16, **options)
    values["attn_mask"][1] = False
    values["k"] *= values["attn_mask"].mT.where(values["attn_mask"].mT, 500)
    values = with_results(values, generator)
    assert_within_twice_of_eager(values, target)
    results = gradients(values, target)
    assert not any(gradient[1].any() for gradient in results[:3])
    hidden = ~values["attn_mask"][0, 0, 0]
    assert not any(gradient[0][:, hidden].any() for gradient in results[1:3])


def test_queries_of_two_tiles_of_logarithms() -> None:
    """More than 128 blocks: the last queries and keys, for which the last 1,024 are enough."""
    generator = torch.Generator().manual_seed(5)
    values = make_inputs(generator, 1, 1, 16640, 16640, 16, dtype=BF16, causal=True, window=100)
    names = ("q", "k", "v")
    outs, logs = [], []
    for start in range(0, 16640, 1024):
        before = max(0, start - 128)
        part = values | {name: values[name][:, :, before : start + 1024] for name in names}
        out, lse = canonical_ops.sdpa(**part)
        outs.append(out[:, :, start - before :])
        logs.append(lse[:, :, start - before :])
    out, lse = torch.cat(outs, 2), torch.cat(logs, 2)
    grad_out = torch.randn(out.shape, generator=generator).to(BF16)
    whole = values | {"grad_out": grad_out, "out": out, "lse": lse, "mask_grad": False}
    last = whole | {
        name: whole[name][:, :, -1024:] for name in ("grad_out", "q", "k", "v", "out", "lse")
    }
    for own, wanted, eager in zip(
        gradients(whole), exact(last), BACKWARD.reference(**last), strict=False
    ):
        error = (eager.double() - wanted)[:, :, 512:].abs().max().item()
        assert (own[:, :, -512:].double() - wanted[:, :, 512:]).abs().max().item() <= 2 * error


def test_what_forward_saves_fits(forward: Any) -> None:
    """Outputs and sums of the kernel of long attention, in place of eager's."""
    values = saved(1, 2, 640, 640, 64, causal=True)
    out, lse = forward.run({name: values[name] for name in forward_names(values)})
    assert_within_twice_of_eager(values | {"out": out, "lse": lse})


def forward_names(values: dict[str, Any]) -> list[str]:
    return [name for name in values if name not in ("grad_out", "out", "lse", "mask_grad")]


@pytest.mark.parametrize(
    ("change", "target", "chosen"),
    [
        ({}, "trn2", True),
        ({}, "trn3", True),
        ({}, "trn1", False),
        ({"dtype": torch.float32}, "trn2", False),
        ({"length": 513}, "trn2", False),
        ({"depth": 384}, "trn2", False),
        ({"width": 192}, "trn2", False),
        ({"dropout_p": 0.1}, "trn2", False),
        ({"mask": "bool"}, "trn2", False),
        ({"mask": "keys"}, "trn2", True),
        ({"causal": True, "window": 100}, "trn2", True),
        ({"length": 39680, "depth": 8192}, "trn2", True),
        ({"length": 39808, "depth": 8192}, "trn2", False),
        ({"length": 512, "depth": 131072}, "trn2", True),
    ],
)
def test_where_it_is_chosen(change: dict[str, Any], target: str, chosen: bool) -> None:
    sizes = {"length": 512, "depth": 512, "width": 128} | change
    shape = (1, 1, *(sizes.pop(name) for name in ("length", "depth", "width")))
    assert is_long(unsaved(*shape, **sizes), target) is chosen


@pytest.mark.parametrize("mask", ["", "keys"])
def test_as_many_queries_as_it_takes_fit(mask: str) -> None:
    options: dict[str, Any] = {"sources": 1, "causal": True, "window": 300, "mask": mask}
    program = traced(BACKWARD, unsaved(1, 2, 39680, 39680, 128, **options))
    assert program.peak_sbuf_bytes <= hardware("trn2").sbuf_partition_bytes
    assert program.peak_psum_bytes <= hardware("trn2").psum_partition_bytes


@pytest.mark.parametrize(("heads", "length", "least"), [(4, 2048, 0.55), (1, 8192, 0.74)])
def test_tensor_engine_is_busy(heads: int, length: int, least: float) -> None:
    """A share of its peak at least, in the five products, predicted."""
    program = traced(BACKWARD, unsaved(1, heads, length, length, 128, causal=True))
    flops = 10 * heads * length * length / 2 * 128
    seconds = predicted_seconds(program, hardware("trn2"))
    assert flops / seconds >= least * hardware("trn2").peak_bf16_flops


def test_two_cores_pay_where_query_heads_share_their_keys() -> None:
    """One key head of four query heads, as of a model whose heads eight ranks share."""
    values = unsaved(1, 4, 2048, 2048, 128, sources=1, causal=True)
    launch = BACKWARD.launch(bindings(values), TWO)
    program = trace(launch.kernel, launch.arguments, target="trn2", grid=2, values=False)
    one = predicted_seconds(traced(BACKWARD, values), hardware("trn2"))
    assert one >= 1.75 * predicted_seconds(program, TWO)
