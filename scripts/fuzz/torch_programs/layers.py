"""What a model is made of, as lines of a program: what kernels and passes know as one pattern.

A layer has roles (`{0}`, `{1}`) with the shapes that they may have, and lines that give a name of
one letter each. Of the shapes `*i` is any tensor whose last dimension is `i`, equal letters are
equal sizes, `1` is a size, and a mark in front says what a role holds: `#i` row numbers below the
size `i`, `?` bools, `!` a buffer without gradients. `@x` is an activation of `x`. A role takes any
value that fits, the one of another role too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

ACTIVATIONS = (
    "F.relu({})",
    "F.silu({})",
    "F.gelu({})",
    'F.gelu({}, approximate="tanh")',
    "torch.sigmoid({})",
    "torch.tanh({})",
    "F.relu({}).square()",
    "F.leaky_relu({}, 0.1)",
    "F.hardswish({})",
    "torch.sigmoid(1.702 * {}) * {}",
    "0.5 * {} * (1 + torch.tanh(0.7978845608028654 * ({} + 0.044715 * {} ** 3)))",
    "{} * torch.sigmoid({})",
)


_KINDS = {"#": "places", "?": "bools", "!": "buffer"}


@dataclass(frozen=True)
class Role:
    """What an operand of a layer may be: `dims` are the letters of its last dimensions, all of them
    unless it `is_open`; of row numbers the size that they stay below."""

    dims: str
    kind: str = "float"  # float, places, bools, buffer
    is_open: bool = False

    @staticmethod
    def parse(text: str) -> Role:
        """A role as it is written in the table."""
        dims = text.lstrip("#?!*")
        return Role(dims, _KINDS.get(text[0], "float"), text.startswith("*"))

    def bind(self, shape: Sequence[int], sizes: Mapping[str, int]) -> dict[str, int] | None:
        """The sizes of letters with which a shape has this role; None where it does not fit."""
        last = shape[len(shape) - len(self.dims) :] if self.is_open else shape
        if len(last) != len(self.dims) or len(shape) < len(self.dims):
            return None
        bound = dict(sizes)
        for letter, size in zip(self.dims, last, strict=True):
            wanted = int(letter) if letter.isdigit() else bound.setdefault(letter, size)
            if wanted != size:
                return None
        return bound


@dataclass(frozen=True)
class Layer:
    """`roles` are those of `{0}`, `{1}`, ..., `lines` pairs of a name and its expression; a line
    without a name is a write."""

    roles: tuple[Role, ...]
    lines: tuple[tuple[str, str], ...]


def _layers(text: str) -> Iterator[Layer]:
    """Paragraphs: the roles in the first line, then the lines of the layer."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        first, *others = (line.strip() for line in paragraph.strip().splitlines())
        pairs = (re.match("(?:([a-z]) = )?(.*)", line) for line in others)
        lines = tuple((pair[1] or "", pair[2]) for pair in pairs if pair)
        yield Layer(tuple(Role.parse(role) for role in first.split(", ")), lines)


LAYERS = tuple(
    _layers(
        """
        *i, oi
        y = F.linear({0}, {1})

        *i, oi, o
        y = F.linear({0}, {1}, {2})

        *i, io
        y = {0} @ {1}

        *i, oi, o
        p = F.linear({0}, {1}, {2})
        y = @p

        *i, oi, *o
        p = F.linear({0}, {1})
        y = p + {2}

        *i, oi, o, *o
        p = F.linear({0}, {1}, {2})
        a = @p
        y = a * {3}

        *i, oi, oi, io
        g = F.linear({0}, {1})
        a = @g
        u = F.linear({0}, {2})
        m = a * u
        y = F.linear(m, {3})

        *i, oi, oi, io
        g = F.linear({0}, {1})
        a = @g
        m = a * F.linear({0}, {2})
        y = {0} + F.linear(m, {3})

        *i, oi, o, io, i, i, i
        p = F.linear({0}, {1}, {2})
        a = @p
        t = F.linear(a, {3}, {4}) + {0}
        y = F.layer_norm(t, (t.shape[-1],), {5}, {6})

        *i, ii, i, *i, i, i
        t = F.linear({0}, {1}, {2}) + {3}
        y = F.layer_norm(t, (t.shape[-1],), {4}, {5})

        *i, *i, i
        t = {0} + {1}
        y = F.layer_norm(t, t.shape[-1:], {2}, {2})

        *i, i
        y = F.rms_norm({0}, {0}.shape[-1:], {1}, 1e-6)

        *i, i
        w = {0}.to(F32)
        r = torch.rsqrt(w.pow(2).mean(-1, keepdim=True) + 1e-6)
        y = {1} * (w * r).to({0}.dtype)

        *i, i
        w = {0}.float() if {0}.dtype != F32 else {0}
        r = 1 / torch.sqrt((w * w).mean(dim=(-1,), keepdim=True) + 1e-6)
        y = (w * r * (1.0 + {1})).to({0}.dtype)

        *i, i, ii, ii, ii
        n = F.rms_norm({0}, {0}.shape[-1:], {1}, 1e-6)
        q = F.linear(n, {2})
        k = F.linear(n, {3})
        v = F.linear(n, {4})

        *i, i, i, oi, o
        n = F.layer_norm({0}, {0}.shape[-1:], {1}, {2})
        p = F.linear(n, {3}, {4})
        y = @p

        *i, oi, o, oi, o, oi, o
        q = F.linear({0}, {1}, {2})
        k = F.linear({0}, {3}, {4})
        v = F.linear({0}, {5}, {6})

        *i, *i, *i, oi, oi, oi
        y = F.linear({0}, {3}) + F.linear({1}, {4}) + F.linear({2}, {5})

        *i, *i, *i, oi, oi, oi, *o
        y = {6} + F.linear({0}, {3}) + F.linear({1}, {4}) + F.linear({2}, {5})

        bsh, bsh, bsh
        y = F.scaled_dot_product_attention({0}, {1}, {2})

        bsh, bsh, bsh
        y = F.scaled_dot_product_attention({0}, {1}, {2}, is_causal=True)

        bsh, bth, bth, ?st
        y = F.scaled_dot_product_attention({0}, {1}, {2}, attn_mask={3})

        bsh, bth, bth, st
        y = F.scaled_dot_product_attention({0}, {1}, {2}, attn_mask={3}, scale=0.5)

        bsh, bth, bth
        q = {0}.unflatten(-1, (2, -1)).transpose(1, 2)
        k = {1}.unflatten(-1, (2, -1)).transpose(1, 2)
        v = {2}.unflatten(-1, (2, -1)).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

        bsh, bth, bth
        s = {0} @ {1}.transpose(-2, -1) / 4.0
        p = torch.softmax(s, -1)
        y = p @ {2}

        bsh, bth, bth, ?st
        s = torch.matmul({0}, {1}.mT) * 0.25
        m = s.masked_fill({3}, float("-inf"))
        p = F.softmax(m, dim=-1, dtype=F32).to({0}.dtype)
        y = torch.bmm(p, {2})

        bsh, bsh, bsh
        m = torch.full(({0}.shape[1], {0}.shape[1]), float("-inf"), dtype={0}.dtype).triu(1)
        s = torch.matmul({0}, {1}.mT) * 0.25 + m
        y = torch.softmax(s, -1) @ {2}

        bsh, sh, sh
        c = torch.chunk({0}, 2, -1)
        t = torch.cat((-c[1], c[0]), dim=-1)
        y = {0} * {1} + t * {2}

        bsh, bth, sh, sh, th, th
        h = {0}.shape[-1] // 2
        q = {0} * {2} + torch.cat((-{0}[..., h:], {0}[..., :h]), -1) * {3}
        k = {1} * {4} + torch.cat((-{1}[..., h:], {1}[..., :h]), -1) * {5}
        y = q @ k.transpose(1, 2)

        vi, #v
        y = F.embedding({1}, {0})

        vi, #v
        e = F.embedding({1}, {0})
        y = F.linear(e, {0})

        nv, #v
        y = F.cross_entropy({0}, {1}.flatten()[:1].expand({0}.shape[0]))

        nv, #v
        l = {1}.flatten()[0].expand({0}.shape[0])
        y = F.cross_entropy({0}, l, reduction="none", label_smoothing=0.1)

        nv, #v
        l = {1}.flatten()[0].expand({0}.shape[0])
        y = F.nll_loss(F.log_softmax({0}, -1), l, ignore_index=0, reduction="sum")

        bchw, oc33, o
        y = F.conv2d({0}, {1}, {2}, padding=1)

        bchw, cc33, c
        y = F.conv2d({0}, {1}, {2}, padding=1) + {0}
        z = F.relu(y)

        bchw, c133
        y = F.conv2d({0}, {1}, stride=2, groups={0}.shape[1])

        bchw, co22
        y = F.conv_transpose2d({0}, {1}, stride=2)

        bchw, !c, !c, c, c
        y = F.batch_norm({0}, {1}, {2}.abs(), {3}, {4})
        z = @y

        bchw, !c, !c, c, c
        y = F.batch_norm({0}, {1}, {2}, {3}, {4}, training=True)

        bchw, oc33, !o, !o, o, o
        y = F.conv2d({0}, {1}, padding=1)
        n = F.batch_norm(y, {2}, {3}.abs(), {4}, {5})
        z = F.relu(n)

        bchw, c, c
        y = F.group_norm({0}, 1, {1}, {2})

        bchw
        y = F.instance_norm({0})

        bchw
        y = F.max_pool2d({0}, 2)

        bchw
        y = F.max_pool2d({0}, 3, 1, 1, return_indices=True)[1]

        bchw
        y = F.avg_pool2d({0}, 3, 2, 1, count_include_pad=False)

        bchw
        y = F.adaptive_avg_pool2d({0}, 1).flatten(1)

        bchw
        y = F.interpolate({0}, scale_factor=2, mode="nearest")

        bchw
        y = F.pixel_shuffle(torch.cat([{0}] * 4, 1), 2)

        bci, oc3, o
        y = F.conv1d({0}, {1}, {2}, padding="same")

        bsi, li, ll, l, l
        g = F.linear({0}, torch.cat([{1}] * 4))
        h = torch.zeros({0}.shape[0], {1}.shape[0], dtype={0}.dtype)
        y = torch.lstm({0}, [h[None], h[None]], [torch.cat([{1}] * 4), torch.cat([{2}] * 4), \
torch.cat([{3}] * 4), torch.cat([{4}] * 4)], True, 1, 0.0, False, False, True)[0]

        bsi, li, ll
        h = torch.zeros(1, {0}.shape[0], {1}.shape[0], dtype={0}.dtype)
        y = torch.gru({0}, h, [torch.cat([{1}] * 3), torch.cat([{2}] * 3)], False, 1, 0.0, \
False, False, True)[0]

        *i
        y = torch.cumsum({0}, -1)

        *i
        t = torch.topk({0}, 1, -1)
        y = t[0] + t[1]

        *i
        s = torch.sort({0}, dim=-1, stable=True)
        y = torch.gather({0}, -1, s[1])

        *i, *i
        y = torch.cat([{0}, {1}, {0}], -1)

        *i, *i
        a = torch.split({0}, 1, -1)[0]
        b = torch.split({1}, 1, -1)[-1]
        y = a * {0} + b

        vi, #v, *i
        y = {0}.index_add(0, {1}.flatten()[:1], {2}.flatten(0, -2)[:1])

        vi, #v, *i
        k = {0}.clone()
        k[{1}.flatten()[0]] = {2}.flatten(0, -2)[0]

        vi, #v, *i
        {0}.index_copy_(0, {1}.flatten()[:1], {2}.flatten(0, -2)[:1])

        vi, #v
        y = {0}.index_put(({1}.flatten(),), {0}[0], accumulate=True)

        bth, bsh, #t
        {0}.index_copy_(1, {2}.flatten()[:1], {1}[:, :1])
        y = {1} @ {0}.transpose(1, 2)

        *i, *i
        y = torch.where({0} > 0, {1}, torch.tensor(float("nan"))).nan_to_num()

        *i, *i
        y = torch.where({0}.isnan(), torch.tensor(0.5, dtype={0}.dtype), {1})

        *i, ?i
        y = {0}.masked_fill({1}, torch.tensor(2.0))

        *i, ?i
        y = torch.softmax({0}.masked_fill(~{1}, float("-inf")), -1)

        *i
        y = F.dropout({0}, 0.0, training=True) + F.dropout({0}, 0.5, training=False)

        *i
        y = ({0} - {0}.mean(-1, keepdim=True)) / ({0}.std(-1, keepdim=True, unbiased=False) + 1e-5)

        *i, i
        y = F.normalize({0}, dim=-1) @ F.normalize({1}, dim=0)

        oi, o1, *i
        w = torch._weight_norm({0}, {1}, 0)
        y = F.linear({2}, w)

        *i, i
        {0}.mul_({1})

        *i, *i
        {0}.add_({1}, alpha=0.5)

        *i, oi, oi
        s = F.linear({0}, {1})
        s.add_(F.linear({0}, {2}))

        *i, oi
        s = F.linear({0}, {1})
        s.relu_()

        *i
        y = {0}.sum(dim=(0, -1), keepdim=True).expand({0}.shape)

        *i
        y = torch.amax({0}, (-1, 0), keepdim=True) - {0}

        *i, *i
        y = torch.lerp({0}, {1}, 0.9)

        oi, oi, !oi, !oi
        m = {2}.lerp(({1} + 0.01 * {0}), 0.1)
        v = {3}.abs() * 0.99 + {1} * {1} * 0.01
        y = {0} * 0.99 - 0.1 * m / (v.sqrt() + 1e-3)

        vi, #v, io
        e = {0}[{1}]
        y = torch.einsum("...i,io->...o", e, {2})
        """
    )
)
