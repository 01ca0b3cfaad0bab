"""What `versus_aws.py` compares: a function of PyTorch, and a kernel of AWS's for the same tensors.

Sizes are those of tensor-parallel shards of models where AWS's kernels want such, and small enough
to be traced in seconds. A kernel of theirs that keeps its result in a layout of its own (norms and
attention of token generation) is compared all the same: it moves as many bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from versus_checkouts import Checkouts

from trnx.simulator import TensorSpec

BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32
_BOTH = (1, 2)


@dataclass(frozen=True)
class Input:
    """A tensor of a problem; integers are random numbers below `high`."""

    shape: tuple[int, ...]
    dtype: torch.dtype = BF16
    high: int = 0

    def tensor(self) -> torch.Tensor:
        """With values, for `torch.compile`."""
        if self.high:
            return torch.randint(self.high, self.shape, dtype=self.dtype)
        return torch.randn(self.shape, dtype=self.dtype)

    @property
    def spec(self) -> TensorSpec:
        """Without values, for a trace."""
        return TensorSpec.dense(self.shape, self.dtype)


Arguments = Callable[[Checkouts, int], Mapping[str, Any]]


@dataclass(frozen=True)
class Problem:
    """`ours(*inputs)` under `torch.compile` against `kernel` (`module:name`, see `Checkouts`),
    whose arguments by name are given for an LNC. `backward`: ours is the backward graph alone.
    `published` has microseconds for an LNC, on a device, the start of a NEFF in them.
    `inexact`: the name of their kernel's argument, where theirs rounds more often than eager does.
    """

    name: str
    ours: Callable[..., Any]
    inputs: tuple[Input, ...]
    kernel: str
    arguments: Arguments
    lncs: tuple[int, ...] = _BOTH
    backward: bool = False
    published: Mapping[int, float] = field(default_factory=dict)
    inexact: str = ""


def _spec(*shape: int, dtype: torch.dtype = BF16) -> TensorSpec:
    return TensorSpec.dense(shape, dtype)


def _plain(**arguments: Any) -> Arguments:
    return lambda _checkouts, _lnc: arguments


# ---- products ----


def _matmuls() -> Iterator[Problem]:
    """The tutorial's last version; it wants whole blocks of 2048 x 1024 x 1024."""
    place = "matrix_multiplication/matrix_multiplication_nki_kernels.py:nki_matmul_fully_optimized_"
    for rows, inner, columns, dtype in (
        (2048, 1024, 1024, BF16), (2048, 2048, 2048, BF16), (4096, 1024, 2048, BF16),
        (2048, 4096, 1024, BF16), (2048, 1024, 4096, BF16), (2048, 1024, 1024, F32),
        (2048, 2048, 1024, F32),
    ):  # fmt: skip
        lhs, rhs = Input((inner, rows), dtype), Input((inner, columns), dtype)
        yield Problem(
            f"matmul {rows}x{inner}x{columns} {_short(dtype)}", lambda a, b: a.t() @ b, (lhs, rhs),
            place, _plain(lhsT=lhs.spec, rhs=rhs.spec), (1,),
        )  # fmt: skip


def _projections() -> Iterator[Problem]:
    """Heads of attention [.., heads, depth] by a matrix, with a bias or without."""
    place = "core.output_projection.output_projection_cte.output_projection_cte"
    for heads, tokens, hidden, has_bias in (
        (8, 512, 2048, False), (8, 1024, 4096, False), (4, 2048, 2048, True), (16, 512, 4096, True),
    ):  # fmt: skip
        x, w = Input((1, heads, 128, tokens)), Input((heads * 128, hidden))
        bias = (Input((1, hidden)),) if has_bias else ()

        def project(x: Any, w: Any, *bias: Any) -> Any:
            out = x.flatten(1, 2).transpose(1, 2) @ w
            return out + bias[0] if bias else out

        yield Problem(
            f"output projection {tokens}x{heads * 128}x{hidden}{' bias' * has_bias}", project,
            (x, w, *bias), f"{place}:output_projection_cte",
            _plain(attention=x.spec, weight=w.spec, bias=bias[0].spec if bias else None),
        )  # fmt: skip
    for heads, tokens, hidden in ((8, 4, 4096), (4, 16, 8192), (8, 64, 4096), (16, 1, 4096)):
        x, w = Input((128, tokens, heads, 1)), Input((heads * 128, hidden))
        yield Problem(
            f"output projection of decode {tokens}x{heads * 128}x{hidden}",
            lambda x, w: x.permute(1, 3, 2, 0).flatten(2) @ w, (x, w),
            "core.output_projection.output_projection_tkg:output_projection_tkg",
            _plain(attention=x.spec, weight=w.spec),
        )  # fmt: skip


def _qkv() -> Iterator[Problem]:
    def project(x: Any, w: Any) -> Any:
        return x @ w

    def normed(x: Any, w: Any, gamma: Any) -> Any:
        return F.rms_norm(x, (x.shape[-1],), gamma[0], 1e-6) @ w

    for tokens, hidden, columns, has_norm, published in (
        (512, 2048, 768, False, {}), (512, 4096, 1536, False, {}), (1024, 4096, 1536, False, {}),
        (512, 4096, 1536, True, {}), (1024, 2048, 1536, True, {}),
        (1, 4096, 1536, False, {}), (4, 4096, 1536, False, {}), (16, 4096, 1536, True, {}),
        (64, 8192, 1024, True, {}), (1, 20480, 896, True, {2: 104.2}),
        (3, 8192, 512, True, {2: 62.5}),
    ):  # fmt: skip
        x, w, gamma = Input((1, tokens, hidden)), Input((hidden, columns)), Input((1, hidden))
        decodes = " of decode" if tokens <= 96 else ""

        def arguments(
            checkouts: Checkouts, _lnc: int, x: Input = x, w: Input = w, gamma: Input = gamma,
            has_norm: bool = has_norm,
        ) -> Mapping[str, Any]:  # fmt: skip
            kinds = checkouts.named("core.utils.common_types:NormType")
            norm = {"fused_norm_type": kinds.RMS_NORM, "gamma_norm_weights": gamma.spec}
            given = {"input": x.spec, "fused_qkv_weights": w.spec, "use_auto_allocation": True}
            return {**given, **(norm if has_norm else {})}

        yield Problem(
            f"qkv{decodes} {tokens}x{hidden}x{columns}{' norm' * has_norm}",
            normed if has_norm else project, (x, w, gamma) if has_norm else (x, w),
            "core.qkv.qkv:qkv", arguments, published=published,
        )  # fmt: skip


def _mlps() -> Iterator[Problem]:
    def mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return (F.silu(x @ gate) * (x @ up)) @ down

    for tokens, hidden, inner, published in (
        (512, 1024, 448, {1: 80.5}), (512, 2048, 1024, {}), (1024, 4096, 512, {}),
        (1024, 8192, 448, {2: 278.0}), (1, 4096, 1024, {}), (4, 4096, 1024, {}),
        (16, 4096, 1024, {}), (64, 4096, 1024, {}), (1, 16384, 416, {1: 118.4}),
        (1, 8192, 448, {2: 62.2}), (5, 16384, 832, {2: 153.9}), (1, 4096, 128, {2: 25.6}),
    ):  # fmt: skip
        x, w, down = Input((1, tokens, hidden)), Input((hidden, inner)), Input((inner, hidden))
        yield Problem(
            f"mlp{' of decode' if tokens <= 96 else ''} {tokens}x{hidden}x{inner}", mlp,
            (x, w, w, down), "core.mlp.mlp:mlp",
            _plain(
                hidden_tensor=x.spec, gate_proj_weights_tensor=w.spec,
                up_proj_weights_tensor=w.spec, down_proj_weights_tensor=down.spec,
            ), published=published,
        )  # fmt: skip


def _short(dtype: torch.dtype) -> str:
    return {BF16: "bf16", F32: "fp32"}[dtype]


# ---- rows ----


def _norms() -> Iterator[Problem]:
    def rms(x: Any, gamma: Any) -> Any:
        return F.rms_norm(x, (x.shape[-1],), gamma[0], 1e-6)

    def layer(x: Any, gamma: Any, beta: Any) -> Any:
        return F.layer_norm(x, (x.shape[-1],), gamma[0], beta[0], 1e-6)

    for tokens, hidden in ((8, 4096), (32, 8192), (128, 4096), (512, 3072)):
        x, gamma = Input((1, tokens, hidden)), Input((1, hidden))
        out = _spec(128, tokens, hidden // 128)
        given = {"input": x.spec, "gamma": gamma.spec, "output": out}
        yield Problem(
            f"rms_norm {tokens}x{hidden}", rms, (x, gamma),
            "core.subkernels.rmsnorm_tkg:rmsnorm_tkg", _plain(**given),
        )  # fmt: skip
        yield Problem(
            f"layer_norm {tokens}x{hidden}", layer, (x, gamma, gamma),
            "core.subkernels.layernorm_tkg:layernorm_tkg", _plain(**given, beta=gamma.spec),
        )  # fmt: skip


def _losses() -> Iterator[Problem]:
    def forward(x: Any, labels: Any) -> Any:
        return F.cross_entropy(x, labels.long(), reduction="none")

    def mean(x: Any, labels: Any) -> Any:
        return F.cross_entropy(x, labels.long())

    place = "experimental.loss.cross_entropy:cross_entropy_"
    for rows, classes, dtype in (
        (512, 32000, BF16), (256, 32000, F32), (256, 50257, BF16), (1024, 16384, BF16),
    ):  # fmt: skip
        x, labels = Input((rows, classes), dtype), Input((rows,), I32, classes)

        def arguments(
            _checkouts: Checkouts, _lnc: int, x: Input = x, labels: Input = labels
        ) -> Mapping[str, Any]:
            import nki.language as nl

            return {
                "logits_hbm": x.spec, "targets_hbm": labels.spec, "positions_per_batch": 64,
                "dtype": nl.bfloat16 if x.dtype is BF16 else nl.float32,
            }  # fmt: skip

        what = f"{rows}x{classes} {_short(dtype)}"
        yield Problem(f"cross-entropy {what}", forward, (x, labels), f"{place}forward", arguments)

        def backward(
            checkouts: Checkouts, lnc: int, x: Input = x, given: Arguments = arguments
        ) -> Mapping[str, Any]:
            more = {"lse_state_hbm": _spec(x.shape[0], dtype=x.dtype), "inplace": False}
            return {**given(checkouts, lnc), **more}

        yield Problem(
            f"cross-entropy backward {what}", mean, (x, labels), f"{place}backward", backward,
            backward=True,
        )  # fmt: skip


def _orders() -> Iterator[Problem]:
    for rows, columns, dtype in (
        (128, 2048, F32), (1024, 4096, F32), (2048, 2048, BF16), (256, 8192, BF16),
    ):  # fmt: skip
        x = Input((rows, columns), dtype)
        yield Problem(
            f"cumsum {rows}x{columns} {_short(dtype)}",
            lambda x: x.cumsum(-1, dtype=x.dtype), (x,),
            "core.cumsum.cumsum:cumsum", _plain(x=x.spec), (1,),
            inexact="x" if dtype is F32 else "",
        )  # fmt: skip
    for rows, columns in ((8, 16384), (64, 8192), (128, 32768)):
        x = Input((rows, columns), F32)
        yield Problem(
            f"max with its index {rows}x{columns} fp32", lambda x: x.max(-1), (x,),
            "core.max.cascaded_max:cascaded_max", _plain(input_tensor=x.spec),
        )  # fmt: skip
    for rows, columns, k in ((32, 8192, 8), (128, 8192, 64), (64, 25600, 64), (128, 4096, 128)):
        x = Input((rows, columns), F32)
        yield Problem(
            f"topk {k} of {rows}x{columns} fp32", lambda x, k=k: x.topk(k), (x,),
            "core.topk.rotational_topk:rotational_topk", _top(x, k),
        )  # fmt: skip


def _top(x: Input, k: int) -> Arguments:
    def arguments(checkouts: Checkouts, lnc: int) -> Mapping[str, Any]:
        import nki.language as nl

        module = checkouts.module("core.topk.rotational_topk")
        config = module.create_topk_config(
            inp_shape=(1, *x.shape), inp_dtype=nl.float32, k=k, sorted=True, num_programs=lnc
        )
        rotational = module.create_rotational_topk_config(inp_shape=x.shape, topk_config=config)
        return {"inp": x.spec, "config": module.prepare_rotational_constants(rotational)}

    return arguments


# ---- attention ----


def _attention() -> Iterator[Problem]:
    """Heads by rows as PyTorch has them, and with the keys stored [depth, keys], as their kernel
    likes them best.
    """

    def causal(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]

    def stored(q: Any, k: Any, v: Any) -> Any:
        return causal(q, k.transpose(1, 2), v)

    def full(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]

    place = "core.attention.attention_cte:attention_cte"
    for heads, length, depth, published in (
        (1, 256, 128, {2: 43.0}), (1, 512, 128, {2: 52.0}), (1, 1024, 128, {2: 59.0}),
        (8, 1024, 128, {}), (2, 2048, 128, {}), (12, 512, 64, {}), (4, 1024, 64, {}),
    ):  # fmt: skip
        q, turned = Input((heads, length, depth)), Input((heads, depth, length))
        given = {"q": q.spec, "v": q.spec, "scale": depth**-0.5}
        name = f"attention causal {heads}x{length}x{depth}"
        yield Problem(
            name, causal, (q, q, q), place, _plain(**given, k=q.spec, tp_k=True),
            published=published,
        )  # fmt: skip
        yield Problem(
            f"{name}, keys [d, S]", stored, (q, turned, q), place, _plain(**given, k=turned.spec)
        )
    q, k = Input((3, 1024, 128)), Input((3, 2048, 128))
    yield Problem(
        "attention 3x1024x128 on 2048 keys", full, (q, k, k), place,
        _plain(q=q.spec, k=k.spec, v=k.spec, scale=128**-0.5, causal_mask=False, tp_k=True),
        published={1: 155.0, 2: 115.0},
    )  # fmt: skip
    place = "core.attention.attention_bwd:attention_bwd"
    for heads, length, depth in ((4, 1024, 128), (2, 2048, 128), (4, 1024, 64)):
        q = Input((1, heads, length, depth))
        theirs = _spec(1, heads, depth, length)
        names = ("q_ref", "k_ref", "v_ref", "o_ref", "dy_ref")
        yield Problem(
            f"attention backward causal {heads}x{length}x{depth}",
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, q, q),
            place,
            _plain(
                **dict.fromkeys(names, theirs), use_causal_mask=True, mixed_precision=True,
                lse_ref=_spec(1, heads, 128, length // 128, dtype=F32),
            ), backward=True,
        )  # fmt: skip


def _decodes() -> Iterator[Problem]:
    for requests, heads, keys, depth in (
        (8, 8, 1024, 128), (8, 8, 4096, 128), (1, 8, 8192, 128), (4, 4, 2048, 128),
        (16, 8, 1024, 64), (4, 16, 4096, 128),
    ):  # fmt: skip
        q, k = Input((requests, heads, 1, depth)), Input((requests, 1, keys, depth))

        def arguments(
            checkouts: Checkouts,
            _lnc: int,
            sizes: tuple[int, ...] = (requests, heads, keys, depth),
        ) -> Mapping[str, Any]:
            requests, heads, keys, depth = sizes
            config = checkouts.named("core.attention.attention_tkg_utils:AttnTKGConfig")
            return {
                "q": _spec(depth, requests * heads), "k_active": _spec(depth, requests),
                "v_active": _spec(requests, 1, 1, depth),
                "k_prior": _spec(requests, 1, keys, depth),
                "v_prior": _spec(requests, 1, keys, depth),
                "mask": _spec(1, requests, heads, 1, dtype=torch.uint8),
                "positions": _spec(requests, 1, dtype=F32),
                "config": config(
                    bs=requests, q_head=heads, s_active=1, curr_sprior=keys, full_sprior=keys,
                    d_head=depth, tp_k_prior=True, use_pos_id=True, qk_in_sb=True,
                ),
                "kernel": checkouts.named("core.attention.attention_tkg:attention_tkg"),
                "manager": checkouts.named("core.utils.allocator:SbufManager"),
            }  # fmt: skip

        yield Problem(
            f"attention of decode {requests} requests, {heads} heads, {keys}x{depth}",
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), (q, k, k),
            "attention_of_decode", arguments,
        )  # fmt: skip


def _ropes() -> Iterator[Problem]:
    def turned(x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin

    def both(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        return turned(q, cos[:, None], sin[:, None]), turned(k, cos[:, None], sin[:, None])

    for heads, on, length, depth in ((8, 2, 2048, 128), (32, 8, 512, 128), (12, 12, 1024, 64)):
        q, k = Input((1, heads, length, depth)), Input((1, on, length, depth))
        angle = Input((1, length, depth))
        yield Problem(
            f"RoPE {heads} and {on} heads {length}x{depth}", both, (q, k, angle, angle),
            "core.embeddings.rope_hf:rope_hf",
            _plain(q=q.spec, k=k.spec, q_out=q.spec, k_out=k.spec, cos=angle.spec, sin=angle.spec),
        )  # fmt: skip

    def first(x: Any, cos: Any, sin: Any) -> Any:
        low, high = x.chunk(2)
        cos, sin = cos[:, :, None], sin[:, :, None]
        return torch.cat((low * cos - high * sin, high * cos + low * sin))

    for heads, length in ((8, 1024), (4, 256)):
        x, angle = Input((128, 1, heads, length)), Input((64, 1, length))
        given = {"x_in": x.spec, "cos": angle.spec, "sin": angle.spec}
        yield Problem(
            f"RoPE, depth first, 128x{heads}x{length}", first, (x, angle, angle),
            "core.embeddings.rope:RoPE",
            lambda _checkouts, lnc, given=given: {**given, "lnc_shard": lnc == 2},
        )  # fmt: skip


# ---- images, sequences, elements ----


def _convolutions() -> Iterator[Problem]:
    for channels, out, length, width in (
        (256, 256, 1024, 3),
        (80, 512, 1500, 3),
        (512, 512, 512, 5),
    ):
        x, w = Input((1, channels, length)), Input((width, channels, out))

        def convolve(x: Any, w: Any, pad: int = width // 2) -> Any:
            return F.conv1d(x, w.permute(2, 1, 0), None, 1, pad)

        given = {"x_in": x.spec, "filters": w.spec, "padding": (width // 2, width // 2)}
        yield Problem(
            f"conv1d {channels} to {out}, {length}, {width} taps", convolve, (x, w),
            "experimental.conv.conv1d:conv1d",
            lambda _checkouts, lnc, given=given: {**given, "lnc_shard": lnc == 2},
        )  # fmt: skip
    for channels, length, width in ((256, 1024, 4), (512, 2048, 4)):
        x, w = Input((1, channels, 1, length)), Input((channels, 1, 1, width))
        yield Problem(
            f"depthwise conv1d {channels}, {length}, {width} taps",
            lambda x, w: F.conv2d(x, w, groups=x.shape[1]), (x, w),
            "experimental.conv.depthwise_conv1d:depthwise_conv1d_implicit_gemm",
            _plain(img_ref=x.spec, filter_ref=w.spec, feature_group_count=channels), (2,),
        )  # fmt: skip


def _tutorials() -> Iterator[Problem]:
    place = "tensor_addition/tensor_addition_nki_kernels.py:nki_tensor_add"
    for rows, columns, dtype in (
        (1024, 4096, F32), (2048, 2048, BF16), (512, 8192, BF16), (4096, 4096, BF16),
    ):  # fmt: skip
        x = Input((rows, columns), dtype)
        yield Problem(
            f"add {rows}x{columns} {_short(dtype)}", torch.add, (x, x), place,
            _plain(a_input=x.spec, b_input=x.spec), (1,),
        )  # fmt: skip
    place = "transpose2d/transpose2d_nki_kernels.py:tensor_transpose2D_kernel_"
    for rows, columns, dtype in ((64, 64, F32), (32, 128, F32), (64, 64, BF16)):
        x = Input((128, rows * columns), dtype)

        def turn(x: Any, sizes: tuple[int, int] = (rows, columns)) -> Any:
            return x.view(-1, *sizes).transpose(1, 2).contiguous().view(x.shape)

        yield Problem(
            f"transpose 128 of {rows}x{columns} {_short(dtype)}", turn, (x,), place,
            _plain(in_tensor=x.spec, shape2D=(rows, columns)), (1,),
        )  # fmt: skip
    place = "average_pool2d/average_pool2d_nki_kernels.py:tensor_avgpool_kernel"
    for channels, size, window, dtype in (
        (64, 64, 2, F32), (128, 56, 2, BF16), (128, 48, 4, F32), (128, 64, 8, BF16),
    ):  # fmt: skip
        x = Input((channels, size, size), dtype)
        yield Problem(
            f"avg_pool {channels}x{size}x{size} by {window} {_short(dtype)}",
            lambda x, window=window: F.avg_pool2d(x, window), (x,), place,
            _plain(in_tensor=x.spec, pool_size=window), (1,),
        )  # fmt: skip


def problems() -> Iterator[Problem]:
    """All of them."""
    for family in (
        _matmuls, _projections, _qkv, _mlps, _norms, _losses, _orders, _attention, _decodes, _ropes,
        _convolutions, _tutorials,
    ):  # fmt: skip
        yield from family()
