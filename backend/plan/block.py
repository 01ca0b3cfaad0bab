"""One rank's share of a transformer as torch modules of the sharded sizes, without data.

A module is cut where collectives stand: what a collective returns is an input of its own, so that
shapes, saved tensors and kernels are those of the graph between collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from trnx.backend.plan.description import ModelDescription
from trnx.backend.plan.mesh import Mesh
from trnx.backend.plan.workload import Mode, Workload


@contextmanager
def without_data() -> Iterator[None]:
    """Tensors made inside have shapes and no data."""
    with FakeTensorMode():
        yield


@dataclass(frozen=True)
class Shard:
    """Sizes of one rank: what a mesh leaves of a block, for `sequences` of `rows` tokens.

    `norm_rows` are the tokens of a sequence that norms and residuals see; `cached` those in the KV
    cache; `laid_out` whether weights lie as products read them, with q, k and v in one. Meshes with
    equal shards have equal blocks.
    """

    model: ModelDescription
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    experts: int
    expert_rows: int
    sequences: int
    rows: int
    norm_rows: int
    cached: int
    dtype: torch.dtype
    cuts_output: bool
    laid_out: bool

    @property
    def gathers(self) -> bool:
        """Whether a collective stands between a norm and the product behind it."""
        return self.norm_rows != self.rows


def shard_of(model: ModelDescription, mesh: Mesh, work: Workload) -> Shard:
    """The sizes of one rank of a mesh."""
    sequences, tensor = work.sequences(mesh.data), mesh.tensor
    # Balanced routing: each expert gets its share of all tokens of the ranks that exchange them.
    routed = sequences * work.rows * mesh.expert * model.experts_per_token
    return Shard(
        model=model,
        heads=model.heads // tensor,
        kv_heads=max(1, model.kv_heads // tensor),
        ffn=model.ffn // tensor,
        vocab=-(-model.vocab // tensor),
        experts=model.experts // mesh.expert,
        expert_rows=-(-routed // model.experts),
        sequences=sequences,
        rows=work.rows,
        norm_rows=work.rows // tensor if mesh.sequence else work.rows,
        cached=work.sequence if work.mode is Mode.DECODE else 0,
        dtype=work.dtype,
        cuts_output=tensor > 1,
        laid_out=not work.training,
    )


class LaidOutLinear(nn.Module):
    """nn.Linear with a weight `[inner, columns]`, which products read without transposing it.

    Inference lays its weights out once, when it loads them: torch_neuronx.trace has them in the
    compiled file, NxD Inference's "weight layout optimization" and transformers-neuronx's weight
    tiling do it for shards (SDK/libraries/nxd-inference/api-guides/api-guide.rst and
    developer_guides/migrate-from-tnx-to-nxdi.rst).
    """

    def __init__(self, inner: int, columns: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inner, columns, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(columns, dtype=dtype)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inner] -> [..., columns]."""
        return F.linear(x, self.weight.t(), self.bias)


def _linear(shard: Shard, inner: int, columns: int, bias: bool) -> nn.Module:
    kind = LaidOutLinear if shard.laid_out else nn.Linear
    return kind(inner, columns, bias, dtype=shard.dtype)


class Attention(nn.Module):
    """Attention of one rank's heads: [sequences, rows, hidden] -> the same, a partial sum."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, shard: Shard) -> None:
        super().__init__()
        model, dim = shard.model, shard.model.head_dim
        bias, dtype = model.qkv_bias or model.encoder, shard.dtype
        self.shard = shard
        self.sizes = [heads * dim for heads in (shard.heads, shard.kv_heads, shard.kv_heads)]
        # One product where weights are laid out once: "larger matrices allow for more efficient
        # data movement" (SDK/libraries/nxd-inference/developer_guides/feature-guide.rst).
        widths = [sum(self.sizes)] if shard.laid_out else self.sizes
        self.qkv = nn.ModuleList(_linear(shard, model.hidden, width, bias) for width in widths)
        self.o = _linear(shard, shard.heads * dim, model.hidden, model.encoder)
        if not model.encoder:
            self.register_buffer("cos", torch.empty(shard.rows, dim, dtype=dtype), False)
            self.register_buffer("sin", torch.empty(shard.rows, dim, dtype=dtype), False)

    def forward(
        self, x: torch.Tensor, cache: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The sum, and the keys and values of x; `cache` has those of all tokens, in decode."""
        shard = self.shard
        parts = [part(x) for part in self.qkv]
        parts = parts if len(parts) == 3 else parts[0].split(self.sizes, -1)
        q, k, v = map(self._heads, parts)
        if not shard.model.encoder:
            q, k = self._rotated(q), self._rotated(k)
        # TorchDynamo traces no truth of a tuple: the graph would end before attention.
        decodes = len(cache) > 0
        keys, values = cache if decodes else (k, v)
        causal = shard.model.causal and not decodes
        y = F.scaled_dot_product_attention(
            q, keys, values, is_causal=causal, enable_gqa=shard.heads != shard.kv_heads
        )
        return self.o(y.transpose(1, 2).reshape(shard.sequences, shard.rows, -1)), k, v

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(
            self.shard.sequences, self.shard.rows, -1, self.shard.model.head_dim
        ).transpose(1, 2)

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat((-second, first), -1) * self.sin


class Mlp(nn.Module):
    """The MLP, or BERT's, with one rank's columns: a partial sum."""

    def __init__(self, shard: Shard) -> None:
        super().__init__()
        hidden, encoder = shard.model.hidden, shard.model.encoder
        self.gate = None if encoder else _linear(shard, hidden, shard.ffn, False)
        self.up = _linear(shard, hidden, shard.ffn, encoder)
        self.down = _linear(shard, shard.ffn, hidden, encoder)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., hidden]."""
        up = self.up(x)
        inner = F.gelu(up) if self.gate is None else F.silu(self.gate(x)) * up
        return self.down(inner)  # type: ignore[no-any-return]


class Experts(nn.Module):
    """One rank's experts on the rows that were routed to them."""

    def __init__(self, shard: Shard) -> None:
        super().__init__()
        hidden, dtype = shard.model.hidden, shard.dtype
        self.gate = nn.Parameter(torch.empty(shard.experts, hidden, shard.ffn, dtype=dtype))
        self.up = nn.Parameter(torch.empty(shard.experts, hidden, shard.ffn, dtype=dtype))
        self.down = nn.Parameter(torch.empty(shard.experts, shard.ffn, hidden, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[experts, expert_rows, hidden] -> the same."""
        return torch.bmm(F.silu(torch.bmm(x, self.gate)) * torch.bmm(x, self.up), self.down)


class Block(nn.Module):
    """A block of one rank. `inputs` makes its arguments."""

    def __init__(self, shard: Shard) -> None:
        super().__init__()
        self.shard = shard
        model, dtype = shard.model, shard.dtype
        self.attention = Attention(shard)
        norm = nn.LayerNorm if model.encoder else nn.RMSNorm
        self.norm1 = norm(model.hidden, dtype=dtype)
        self.norm2 = norm(model.hidden, dtype=dtype)
        self.mlp = Mlp(shard) if model.experts == 1 else Experts(shard)
        self.router = (
            None if model.experts == 1 else _linear(shard, model.hidden, model.experts, False)
        )

    def inputs(self) -> dict[str, torch.Tensor]:
        """The residual stream, and what each collective returns."""
        shard, hidden = self.shard, self.shard.model.hidden
        short = (shard.sequences, shard.norm_rows, hidden)
        full = (shard.sequences, shard.rows, hidden)
        shapes: dict[str, tuple[int, ...]] = {"x": short}
        if shard.gathers:
            shapes |= {"attention_in": full, "mlp_in": full}
        if shard.cuts_output:
            shapes |= {"attention_out": short, "mlp_out": short}
        if self.router is not None:
            shapes["routed"] = (shard.experts, shard.expert_rows, hidden)
            shapes["mlp_out"] = short
        if shard.cached:
            kept = (shard.sequences, shard.kv_heads, shard.cached, shard.model.head_dim)
            shapes |= {"keys": kept, "values": kept}
        return {name: torch.empty(shape, dtype=shard.dtype) for name, shape in shapes.items()}

    def forward(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """What goes into collectives, and the residual stream last."""
        out: list[torch.Tensor] = []

        def through(name: str, value: torch.Tensor) -> torch.Tensor:
            """`value`, or what a collective makes of it."""
            if name not in inputs:
                return value
            out.append(value)
            return inputs[name]

        x, encoder = inputs["x"], self.shard.model.encoder
        cache = (inputs["keys"], inputs["values"]) if "keys" in inputs else ()
        y = x if encoder else self.norm1(x)
        y, *written = self.attention(through("attention_in", y), cache)
        out += written if cache else []
        x = x + through("attention_out", y)
        x = self.norm1(x) if encoder else x
        y = through("mlp_in", x if encoder else self.norm2(x))
        if self.router is not None:
            weights, chosen = F.softmax(self.router(y), -1).topk(self.shard.model.experts_per_token)
            out += [weights, chosen]
            y = through("routed", y)
        x = x + through("mlp_out", self.mlp(y))
        return (*out, self.norm2(x) if encoder else x)


class Head(nn.Module):
    """Final norm, output matrix and, in training, the cross entropy of one rank's vocabulary."""

    def __init__(self, shard: Shard, training: bool) -> None:
        super().__init__()
        model, dtype = shard.model, shard.dtype
        self.training_loss = training
        self.transform = _linear(shard, model.hidden, model.hidden, True) if model.encoder else None
        norm = nn.LayerNorm if model.encoder else nn.RMSNorm
        self.norm = norm(model.hidden, dtype=dtype)
        self.out = _linear(shard, model.hidden, shard.vocab, model.encoder)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] and [tokens] -> the loss, or logits [tokens, vocabulary]."""
        if self.transform is not None:
            x = F.gelu(self.transform(x))
        logits = self.out(self.norm(x))
        if not self.training_loss:
            return logits  # type: ignore[no-any-return]
        return F.cross_entropy(logits.float(), wanted)
