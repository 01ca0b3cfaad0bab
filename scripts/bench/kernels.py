"""Predicted time of kernels against the limit of the chip: products, attention, norms, chains,
losses, optimizers, scans, integers and convolutions, as `torch.compile` plans them.

The limit of a row is its busiest resource if nothing waits: TensorE for the products it needs,
ScalarE for its exponentials (one an element and partition), and the DMA engines for each input read
and each output written once. `--target`, `--only TEXT` (rows whose name contains it), `--json`
prints one object as the last line. Exit status 0 means that every bar holds, and of convolutions of
image models the share of 80 % of them; `missing` rows, which have regions off NKI, fail.

Where a logical core may have two physical ones, each row has the time on both, and how many times
faster that is: a row that an engine bounds is to be 1.8 times as fast, one that DMA bounds 1.5
times, as two cores share an HBM stack, which gives them 1.7 times what it gives one on trn2. A row
holds, too, that is within 88 % of what the stack gives both, with the first load's start and the
last store's end, which cannot be shared. Of convolutions of image models, many of which take little
more than these, it is counted and does not decide.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from convolution_layers import Layer, layers
from scans import workloads

import trnx
from trnx.backend.model_profile import ModelProfile
from trnx.simulator.hardware import Hardware, hardware

BF16, F32 = torch.bfloat16, torch.float32
_LANES = 128
_SHARE_OF_FAMILY = 0.8  # of its rows hold
# How many times faster both cores of a logical core are to be, by the limit of the row.
_FASTER = {"DMA": 1.5}
_FASTER_BY_ENGINES = 1.8
_SHARE_OF_STACK = 0.88  # of the limit that both cores have together


@dataclass(frozen=True)
class Case:
    """One workload: `function(*inputs)`, what it must do at least, and the share of that limit
    which is asked for, or instead of it the share `otherwise` of TensorE's. `flops` are those of
    products, of the rate of `dtype`; `exponentials` count elements; `nbytes` cross HBM. `trains`:
    the backward pass is part of it. Of a `family`, 80 % of the rows are to hold.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    bar: float
    flops: float = 0
    exponentials: float = 0
    nbytes: float = 0
    dtype: torch.dtype = BF16
    trains: bool = False
    family: str = ""
    otherwise: float | None = None

    def limits(self, chip: Hardware) -> dict[str, float]:
        """Seconds of each resource."""
        peak = chip.peak_fp32_flops if self.dtype is F32 else chip.peak_bf16_flops
        return {
            "TensorE": self.flops / peak,
            "ScalarE": self.exponentials / (_LANES * chip.scalar_clock),
            "DMA": self.nbytes / chip.dma_bytes_per_second,
        }

    def reaches(self, limits: dict[str, float], seconds: float) -> bool:
        """Whether `seconds` are near enough to the limit."""
        if self.otherwise is not None and limits["TensorE"] >= self.otherwise * seconds:
            return True
        return max(limits.values()) >= self.bar * seconds


@dataclass(frozen=True)
class Result:
    """One row: microseconds, the limit's, and which resource that is; `missing` are the ops of
    regions that no NKI kernel takes, on one core or on two, and kernels of which there is an
    estimate alone, which shows nothing. `two_limit_us`: that of what two cores read and write."""

    name: str
    target: str
    us: float
    limit_us: float
    limit: str
    share: float
    bar: float
    reached: bool
    regions: int
    busiest: str
    missing: tuple[str, ...]
    family: str
    two_us: float | None = None
    alone: tuple[str, ...] = ()
    two_limit_us: float = 0.0

    @property
    def faster(self) -> float | None:
        """How many times faster two cores are; None where a logical core has one."""
        return None if self.two_us is None else self.us / self.two_us

    @property
    def pays(self) -> bool:
        """Whether the bar of two cores holds."""
        if self.two_us is None:
            return True
        bar = _FASTER.get(self.limit, _FASTER_BY_ENGINES)
        is_at_limit = self.two_limit_us >= _SHARE_OF_STACK * self.two_us
        return self.us >= bar * self.two_us or is_at_limit

    @property
    def holds(self) -> bool:
        """Whether the bars hold, that of two cores among them."""
        return not self.missing and self.reached and self.pays

    def text(self) -> str:
        """A line of the table."""
        verdict = "holds" if self.reached and not self.missing else "FAILS"
        note = f" off NKI: {', '.join(self.missing)}" if self.missing else ""
        return (
            f"{self.name:<46}{self.us:10.1f}{self.limit_us:10.1f} {self.limit:<8}{self.share:6.0%}"
            f" >= {self.bar:4.0%} {verdict}{self._on_two()} {self.regions:>3} regions, busy: "
            f"{self.busiest}{note}"
        )

    def _on_two(self) -> str:
        if self.faster is None:
            return ""
        why = f" ({'; '.join(self.alone)})" if self.alone else ""
        verdict = "holds" if self.pays else "FAILS"
        return f" | two {self.two_us:.1f}, {self.faster:.2f}x {verdict}{why} |"


def _tensors(*shapes: tuple[int, ...], dtype: torch.dtype = BF16) -> Callable[[], Any]:
    def make() -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)

    return make


def _attention(
    heads: int,
    length: int,
    width: int,
    bar: float,
    trains: bool = False,
    otherwise: float | None = None,
) -> Case:
    """Causal: half of the scores. Backward has five products where forward has two."""
    shape = (1, heads, length, width)
    scores = heads * length * length / 2
    name = f"sdpa{' backward' if trains else ''} causal 1x{heads}x{length}x{width}"
    tensors = 12 if trains else 4
    return Case(
        name,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        _tensors(shape, shape, shape),
        bar,
        flops=scores * width * 2 * (7 if trains else 2),
        exponentials=scores * (2 if trains else 1),
        nbytes=tensors * heads * length * width * 2,
        trains=trains,
        otherwise=otherwise,
    )


def _decode(requests: int, heads: int, kv: int, length: int, width: int) -> Case:
    shapes = ((requests, heads, 1, width), *[(requests, kv, length, width)] * 2)
    return Case(
        f"decode {requests} requests, {heads} on {kv} heads, {length}x{width}",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        _tensors(*shapes),
        0.80,
        nbytes=2 * requests * kv * length * width * 2,
    )


def _linear(rows: int, inner: int, columns: int, bar: float) -> Case:
    return Case(
        f"linear {rows}x{inner}x{columns}",
        F.linear,
        _tensors((rows, inner), (columns, inner)),
        bar,
        flops=2 * rows * inner * columns,
        nbytes=2 * (rows * inner + inner * columns + rows * columns),
    )


def _mlp(rows: int, hidden: int, inner: int) -> Case:
    def mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    return Case(
        f"SwiGLU MLP {rows}x{hidden}x{inner}",
        mlp,
        _tensors((rows, hidden), (inner, hidden), (inner, hidden), (hidden, inner)),
        0.92,
        flops=6 * rows * hidden * inner,
        nbytes=2 * (3 * hidden * inner + 2 * rows * hidden),
    )


def _rows(name: str, function: Callable[..., Any], shape: tuple[int, int], *more: Any) -> Case:
    """Something over rows: one read, one write."""
    rows, columns = shape
    return Case(
        f"{name} {rows}x{columns}",
        function,
        _tensors(shape, *more),
        0.88,
        nbytes=2 * 2 * rows * columns + sum(2 * torch.Size(m).numel() for m in more),
    )


def _gelu_new(x: torch.Tensor) -> torch.Tensor:
    inner = 0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def _gelu_fast(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def _gelu_erf(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / 2**0.5))


def _gelus(shape: tuple[int, int]) -> Iterator[Case]:
    """GELU as torch has it, and as models write it out."""
    yield _rows("gelu", F.gelu, shape)
    yield _rows("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), shape)
    yield _rows("gelu_new", _gelu_new, shape)
    yield _rows("gelu_fast", _gelu_fast, shape)
    yield _rows("gelu by erf", _gelu_erf, shape)
    yield _rows("quick gelu", lambda x: x * torch.sigmoid(1.702 * x), shape)


def _layer_norm(rows: int, columns: int, dtype: torch.dtype, trains: bool = False) -> Case:
    """With its backward pass, three tensors more cross HBM."""
    shapes = ((rows, columns), (columns,), (columns,))
    width = torch.finfo(dtype).bits // 8
    name = f"layer_norm{' fp32' if dtype is F32 else ''} {rows}x{columns}"
    return Case(
        f"{name}{' with backward' if trains else ''}",
        lambda x, w, b: F.layer_norm(x, (columns,), w, b),
        _tensors(*shapes, dtype=dtype), 0.88, dtype=dtype, trains=trains,
        nbytes=width * ((5 if trains else 2) * rows * columns + 2 * columns),
    )  # fmt: skip


def _rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def _residual_rms(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
    total = x + residual
    return F.rms_norm(total, (x.shape[-1],), weight, 1e-6), total


def _cross_entropy(trains: bool) -> Case:
    rows, classes = 2048, 32000

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, labels)

    def inputs() -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(rows, classes, generator=generator)
        return logits, torch.randint(0, classes, (rows,), generator=generator)

    # Forward reads the logits; with the backward pass they are read once more and written once.
    crossings = 3 if trains else 1
    name = f"cross-entropy {rows}x{classes} fp32{' with backward' if trains else ''}"
    nbytes = crossings * 4 * rows * classes
    return Case(
        name, loss, inputs, 0.88, nbytes=nbytes, exponentials=rows * classes * (2 if trains else 1),
        trains=trains,
    )  # fmt: skip


def _adamw() -> Case:
    size = 2**24
    parameter = torch.nn.Parameter(torch.zeros(size))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, foreach=False)

    def inputs() -> tuple[torch.Tensor, ...]:
        parameter.grad = torch.ones(size)
        optimizer.step()
        return ()

    return Case("AdamW 16M fp32", optimizer.step, inputs, 0.88, nbytes=7 * 4 * size)


def _indexing() -> Iterator[Case]:
    """Reads and writes at indices: rows once out of HBM and once into it, and the indices."""
    rows, width, table = 8192, 1024, 50000

    def at(*shape: int, size: int) -> torch.Tensor:
        return torch.randint(size, shape, generator=torch.Generator().manual_seed(0))

    def case(
        name: str, bar: float, function: Callable[..., Any], nbytes: float, *inputs: Any
    ) -> Case:
        return Case(f"indexing: {name}", function, lambda: inputs, bar, nbytes=nbytes)

    moved, index = 2 * rows * width, 8 * rows
    x, tokens = torch.zeros(table, width, dtype=BF16), at(rows, size=table)
    y = torch.zeros(rows, width, dtype=BF16)
    yield case("rows 8192x1024", 0.85, lambda x, i: x[i], 2 * moved + index, x, tokens)
    yield case(
        "embedding 8192x1024", 0.85, lambda x, i: F.embedding(i, x), 2 * moved + index, x, tokens
    )
    # What is written lies in a copy of the tensor, which passes the engines once.
    yield case(
        "index_put 8192x1024", 0.55, lambda x, i, y: torch.index_put(x, (i,), y),
        2 * table * width + 2 * moved + index, x, tokens, y,
    )  # fmt: skip
    y, chosen = torch.zeros(2048, width), at(2048, size=rows)
    yield case(
        "index_add 2048x1024 fp32", 0.5, lambda x, i, y: x.index_add(0, i, y),
        4 * (rows + 3 * 2048) * width + 8 * 2048, torch.zeros(rows, width), chosen, y,
    )  # fmt: skip
    y, tokens = torch.zeros(rows, 768), at(rows, size=30522)
    yield case(
        "embedding backward 8192x768 fp32", 0.35,
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 30522, -1, False),
        4 * (30522 + 3 * rows) * 768 + index, y, tokens,
    )  # fmt: skip
    x, columns = torch.zeros(48, 512, 1024), at(48, 512, 512, size=1024)
    yield case(
        "gather 48x512x512 of 1024 fp32", 0.6, lambda x, i: x.gather(-1, i),
        48 * 512 * (4 * 1024 + 12 * 512), x, columns,
    )  # fmt: skip
    yield case(
        "argmax 8192x4096 fp32", 0.25, lambda x: x.argmax(-1), 4 * rows * 4096 + index,
        torch.zeros(rows, 4096),
    )  # fmt: skip


def cases() -> Iterator[Case]:
    """All rows."""
    yield _attention(8, 2048, 128, 0.45)
    yield _attention(8, 4096, 128, 0.55)
    yield _attention(1, 16384, 128, 0.55)
    yield _attention(12, 1024, 64, 0.75, otherwise=0.40)
    yield _attention(8, 2048, 128, 0.45, trains=True)
    yield _attention(2, 8192, 128, 0.45, trains=True)
    yield _decode(8, 8, 1, 4096, 128)
    yield _decode(8, 8, 1, 8192, 128)
    yield _linear(1, 4096, 4096, 0.92)
    yield _linear(64, 4096, 4096, 0.92)
    yield _linear(2048, 2048, 2048, 0.80)
    yield _linear(4096, 4096, 4096, 0.90)
    yield _mlp(1, 4096, 14336)
    yield _mlp(64, 4096, 14336)
    for shape in ((8192, 768), (4096, 4096)):
        yield _layer_norm(*shape, BF16)
        yield _layer_norm(*shape, F32)
    yield _layer_norm(8192, 768, BF16, trains=True)
    yield _layer_norm(4096, 4096, BF16, trains=True)
    yield _rows("softmax", lambda x: F.softmax(x, -1), (4096, 4096))
    yield _rows("log_softmax", lambda x: F.log_softmax(x, -1), (4096, 4096))
    yield _rows("rms_norm", lambda x, w: F.rms_norm(x, (4096,), w, 1e-6), (4096, 4096), (4096,))
    yield Case(
        "rms_norm + residual 4096x4096", _residual_rms,
        _tensors((4096, 4096), (4096, 4096), (4096,)), 0.88, nbytes=2 * 4 * 4096 * 4096,
    )  # fmt: skip
    yield from _gelus((4096, 4096))
    yield _rows("gelu_new", _gelu_new, (1024, 3072))
    yield Case(
        "silu * mul 4096x4096", lambda a, b: F.silu(a) * b,
        _tensors((4096, 4096), (4096, 4096)), 0.88, nbytes=2 * 3 * 4096 * 4096,
    )  # fmt: skip
    yield Case(
        "add, gelu, mul, add 4096x4096", lambda a, b, c: F.gelu(a + b) * c + b,
        _tensors(*[(4096, 4096)] * 3), 0.88, nbytes=2 * 4 * 4096 * 4096,
    )  # fmt: skip
    yield Case(
        "RoPE 1x32x2048x128", _rope,
        _tensors((1, 32, 2048, 128), (1, 1, 2048, 128), (1, 1, 2048, 128)), 0.88,
        nbytes=2 * (2 * 32 + 2) * 2048 * 128,
    )  # fmt: skip
    yield _cross_entropy(trains=False)
    yield _cross_entropy(trains=True)
    yield _adamw()
    for name, function, inputs, nbytes, bar in workloads():
        yield Case(name, function, inputs, bar, nbytes=nbytes)
    yield from _indexing()
    for layer in layers():
        yield from _convolutions(layer)


def _convolutions(layer: Layer) -> Iterator[Case]:
    """A layer's forward, and its two gradients by themselves; each tensor crosses HBM once."""
    grad, image, weight = layer.shapes
    how = [[layer.stride] * 2, [layer.padding] * 2, [1, 1], False, [0, 0], layer.groups]
    nbytes = 2 * sum(torch.Size(shape).numel() for shape in layer.shapes)

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, None, layer.stride, layer.padding, 1, layer.groups)

    def gradient(mask: list[bool]) -> Callable[..., Any]:
        def backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
            found = torch.ops.aten.convolution_backward(g, x, w, None, *how, mask)
            return found[mask.index(True)]

        return backward

    def case(family: str, bar: float, function: Callable[..., Any], *shapes: Any) -> Case:
        name = f"{family}: {layer.name}"
        flops, inputs = layer.flops, _tensors(*shapes)
        return Case(name, function, inputs, bar, flops=flops, nbytes=nbytes, family=family)

    shapes = (grad, image, weight)
    yield case("convolution", 0.60, forward, image, weight)
    yield case("input gradient", 0.45, gradient([True, False, False]), *shapes)
    yield case("weight gradient", 0.45, gradient([False, True, False]), *shapes)


def profiled(case: Case, target: str, lnc: int = 1) -> ModelProfile:
    """The prediction for one call, and for its backward pass where the case trains."""
    torch._dynamo.reset()
    inputs = case.inputs()
    options = {"target": target, "lnc": lnc}
    compiled = torch.compile(case.function, backend="trnx", options=options)
    for tensor in inputs:
        tensor.requires_grad_(case.trains and tensor.is_floating_point())
    with torch.set_grad_enabled(case.trains):
        profile: ModelProfile = trnx.profile(compiled, *inputs, target=target)
    return profile


def measure(case: Case, target: str) -> Result:
    """One row."""
    profile = profiled(case, target)
    seconds = sum(region.seconds for region in profile.regions)
    limits = case.limits(profile.chip)
    limit = max(limits, key=lambda name: limits[name])
    queues = {name: busy / seconds for name, (busy, _) in profile.queues.items()}
    busiest = sorted(queues, key=lambda name: -queues[name])[:3]
    two = profiled(case, target, 2) if 2 in hardware(target).lnc else None
    every = [*profile.regions, *(() if two is None else two.regions)]
    off = {op for region in every if region.engine != "nki" for op in region.ops}
    off |= {f"{r.kernel} (no schedule)" for r in every if r.engine == "nki" and r.by != "schedule"}
    two_us = None if two is None else 1e6 * sum(region.seconds for region in two.regions)
    both = replace(profile.chip, cores=2) if two is not None else profile.chip
    shared = case.nbytes / both.stream_bytes_per_second + both.region_seconds
    alone = () if two is None else tuple(f"{r.work}: {r.alone}" for r in two.regions if r.alone)
    return Result(
        case.name, target, seconds * 1e6, limits[limit] * 1e6, limit, limits[limit] / seconds,
        case.bar, case.reaches(limits, seconds), len(profile.regions),
        ", ".join(f"{n} {queues[n]:.0%}" for n in busiest), tuple(sorted(off)), case.family, two_us,
        alone, shared * 1e6,
    )  # fmt: skip


def all_hold(results: list[Result]) -> bool:
    """Whether every bar holds; says for each family how many rows reach their share."""
    held = all(result.holds for result in results if not result.family)
    for family in sorted({result.family for result in results} - {""}):
        rows = [result for result in results if result.family == family]
        reached = sum(result.reached and not result.missing for result in rows)
        holds = reached >= _SHARE_OF_FAMILY * len(rows)
        faster = sum(result.pays for result in rows)
        print(
            f"{family}: {reached} of {len(rows)} {'holds' if holds else 'FAILS'}; "
            f"two cores: {faster} of {len(rows)}"
        )
        held = held and holds
    return held


def main() -> int:
    """Command line: 0 where the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="trn2", type=lambda name: hardware(name).target)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = [case for case in cases() if options.only in case.name]
    if not chosen:
        parser.error(f"no row has {options.only!r} in its name")
    results = []
    for case in chosen:
        results.append(measure(case, options.target))
        print(results[-1].text(), flush=True)
    held = all_hold(results)
    if options.json:
        more = ("holds", "faster", "pays")
        rows = [{**asdict(r), **{name: getattr(r, name) for name in more}} for r in results]
        print(json.dumps({"rows": rows, "bars_hold": held}))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
