"""What a line may be: templates with the number of tensors that they read.

`{0}`, `{1}` are tensors, `{dim}` a dimension of the first one, `{number}` a float, `{whole}` a
small integer. `is_exact` says that equal inputs give equal bits on every engine; `needs_exact` that
a difference in the last bit of an input may change the result altogether, so that only values that
were computed exactly may be read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Operation:
    """One template. `kinds` are the dtypes that its first tensor may have."""

    template: str
    tensors: int
    kinds: str = "float"  # float, number (float or integer), integer, bool, any
    is_exact: bool = False
    needs_exact: bool = False
    writes: bool = False  # in place, to the first tensor


def _all(tensors: int, templates: str, **facts: object) -> tuple[Operation, ...]:
    """One operation a line."""
    lines = (line.strip() for line in templates.strip().splitlines())
    return tuple(Operation(line, tensors, **facts) for line in lines)  # type: ignore[arg-type]


OPERATIONS: tuple[Operation, ...] = (
    *_all(
        1,
        """
        torch.exp(torch.clamp({0}, -4, 4))
        torch.tanh({0})
        torch.sigmoid({0})
        torch.sin({0})
        torch.cos({0})
        torch.sqrt(torch.abs({0}))
        torch.rsqrt(torch.abs({0}) + 0.5)
        torch.log1p(torch.abs({0}))
        torch.erf({0})
        torch.reciprocal(torch.abs({0}) + 0.5)
        F.gelu({0})
        F.gelu({0}, approximate="tanh")
        F.silu({0})
        F.softplus({0})
        F.elu({0})
        F.mish({0})
        F.hardswish({0})
        F.logsigmoid({0})
        {0} ** 2
        {0} ** 3
        {0} * {number}
        {0} + {number}
        {number} - {0}
        {0} / {number}
        torch.softmax({0}, {dim})
        torch.log_softmax({0}, {dim})
        torch.logsumexp({0}, {dim})
        {0}.mean({dim})
        {0}.mean()
        {0}.var({dim}, unbiased=False)
        torch.linalg.vector_norm({0}, dim={dim})
        {0}.norm()
        F.normalize({0}, dim={dim})
        F.layer_norm({0}, {0}.shape[-1:])
        F.rms_norm({0}, {0}.shape[-1:])
        torch.cumsum({0}, {dim})
        {0}.sum({dim}, dtype=F32)
        """,
    ),
    *_all(
        1,
        """
        {0}.sum({dim})
        {0}.sum()
        {0}.sum({dim}, keepdim=True)
        torch.prod({0}.clamp(-1, 1), {dim})
        """,
        kinds="number",
    ),
    *_all(
        1,
        """
        torch.neg({0})
        torch.abs({0})
        torch.relu({0})
        torch.sign({0})
        torch.clamp({0}, -1, 1)
        torch.clamp({0}, min=0.5)
        {0} * 2
        {0} + 1
        3 - {0}
        {0}.amax({dim})
        {0}.amin({dim}, keepdim=True)
        {0}.max()
        torch.maximum({0}, {0}.amin())
        """,
        kinds="number",
        is_exact=True,
    ),
    *_all(
        1,
        """
        torch.floor({0})
        torch.round({0})
        torch.trunc({0})
        torch.frac({0})
        torch.isnan({0})
        torch.argmax({0}, {dim})
        {0}.argmin()
        {0}.max({dim})[1]
        {0}.min({dim})[0]
        torch.sort({0}, dim={dim}, stable=True)[1]
        torch.topk({0}, 1, dim={dim})[0]
        torch.cummax({0}, {dim})[0]
        {0} > {number}
        {0} % 3
        torch.fmod({0}, 2)
        {0} // 2
        {0}.to(I64)
        {0}.to(I32)
        {0}.to(BOOL)
        """,
        kinds="float",
        is_exact=True,
        needs_exact=True,
    ),
    *_all(
        1,
        """
        {0} // 3
        {0} % 5
        {0} << 2
        {0} >> 1
        {0} & 6
        {0} ^ 5
        ~{0}
        {0} * {0}
        {0}.to(F32)
        {0}.to(BF16)
        {0} > {whole}
        {0} == {whole}
        torch.argmax({0}, {dim})
        torch.cumsum({0}, {dim})
        F.one_hot({0}.to(I64).clamp(0, 3), 4)
        {0}.max({dim})[1]
        """,
        kinds="integer",
        is_exact=True,
    ),
    *_all(
        1,
        """
        ~{0}
        {0}.any({dim})
        {0}.all()
        {0}.sum({dim})
        {0}.to(F32)
        {0}.to(I64)
        {0}.cumsum({dim})
        {0} & True
        """,
        kinds="bool",
        is_exact=True,
    ),
    *_all(
        1,
        """
        {0}.transpose(0, -1)
        {0}.t()
        {0}.unsqueeze({dim})
        {0}.squeeze({dim})
        {0}.reshape(-1)
        {0}.flatten()
        {0}[..., :1]
        {0}[1:]
        {0}[::2]
        {0}[-1]
        {0}.select({dim}, 0)
        {0}.narrow({dim}, 0, 1)
        {0}.expand(2, *{0}.shape)
        {0}.contiguous()
        {0}.clone()
        {0}.permute(*reversed(range({0}.dim())))
        {0}.flip({dim})
        {0}.roll(1, {dim})
        {0}.repeat(*([2] + [1] * ({0}.dim() - 1)))
        torch.cat([{0}, {0}], {dim})
        torch.stack([{0}, {0}], {dim})
        {0}.chunk(2, {dim})[0]
        {0}.unbind({dim})[0]
        {0}.split(2, {dim})[-1]
        {0}.movedim({dim}, 0)
        {0}.diagonal()
        torch.tril({0})
        torch.triu({0}, 1)
        {0}.view({0}.shape)
        {0}.index_select({dim}, torch.tensor([0, 0]))
        torch.zeros_like({0})
        torch.ones_like({0})
        torch.full_like({0}, 2)
        """,
        kinds="any",
        is_exact=True,
    ),
    *_all(
        1,
        """
        F.pad({0}, (1, 2))
        F.pad({0}, (0, 1), value=0.5)
        torch.nan_to_num({0})
        torch.masked_fill({0}, {0} == 0, 2.5)
        torch.where({0} == 0, {0}, 1.5)
        {0}.to(F32)
        {0}.to(BF16)
        {0}.to(F16)
        F.leaky_relu({0}, 0.5)
        F.hardtanh({0})
        {0}.detach()
        """,
        is_exact=True,
    ),
    *_all(
        2,
        """
        {0} / (torch.abs({1}) + 0.5)
        {0} @ {1}
        torch.matmul({0}, {1}.transpose(-1, -2))
        F.linear({0}, {1})
        torch.atan2({0}, {1})
        torch.pow(torch.abs({0}) + 0.5, {1})
        torch.lerp({0}, {1}, 0.3)
        torch.addcmul({0}, {1}, {1}, value=0.5)
        torch.hypot({0}, {1})
        F.mse_loss({0}, {1})
        F.smooth_l1_loss({0}, {1})
        torch.dist({0}, {1})
        torch.outer({0}.flatten()[:5], {1}.flatten()[:7])
        torch.einsum("...i,...j->...ij", {0}, {1})
        F.cosine_similarity({0}, {1}, dim=-1)
        torch.logaddexp({0}, {1})
        """,
    ),
    *_all(
        2,
        """
        {0} + {1}
        {0} - {1}
        {0} * {1}
        torch.maximum({0}, {1})
        torch.minimum({0}, {1})
        torch.add({0}, {1}, alpha=2)
        torch.where({0} == {0}, {0}, {1})
        """,
        kinds="number",
        is_exact=True,
    ),
    *_all(
        2,
        """
        {0} < {1}
        {0} >= {1}
        {0} == {1}
        torch.where({0} > {1}, {0}, {1})
        torch.where({0} != 0, {1}, 0)
        """,
        kinds="number",
        is_exact=True,
        needs_exact=True,
    ),
    *_all(
        2,
        """
        torch.cat([{0}, {1}], {dim})
        torch.stack([{0}, {1}])
        {0}.expand_as({1})
        {0}.type_as({1})
        torch.broadcast_tensors({0}, {1})[0]
        """,
        kinds="any",
        is_exact=True,
        needs_exact=True,
    ),
    *_all(
        2,
        """
        torch.where({0}, {1}, 0)
        torch.where({0}, {1}, -{1})
        torch.masked_fill({1}, {0}, 3)
        {1} * {0}
        {0} | ({1} == 1)
        """,
        kinds="bool",
        is_exact=True,
        needs_exact=True,
    ),
    *_all(
        2,
        """
        {1}[{0}.clamp(0, 0)]
        torch.take_along_dim({1}.flatten(), {0}.flatten().to(I64).clamp(0, 0))
        torch.embedding({1}, {0}.to(I64).clamp(0, 0))
        {1}.index_select(0, {0}.flatten().clamp(0, 0))
        torch.bitwise_and({0}, {0})
        """,
        kinds="integer",
        is_exact=True,
        needs_exact=True,
    ),
    *_all(
        3,
        """
        torch.addmm({0}, {1}, {2})
        torch.baddbmm({0}, {1}, {2})
        F.layer_norm({0}, {0}.shape[-1:], {1}, {2})
        torch.addcdiv({0}, {1}, torch.abs({2}) + 0.5)
        F.scaled_dot_product_attention({0}, {1}, {2})
        """,
    ),
    *_all(
        1,
        """
        {0}.add_(1)
        {0}.mul_(2)
        {0}.neg_()
        {0}.zero_()
        {0}.clamp_(-1, 1)
        {0}.fill_(2)
        {0}[0] = 1
        {0}[..., -1] = 0
        {0}[1:].add_(1)
        {0}.t().mul_(2)
        {0}.reshape(-1)[0] = 2
        """,
        kinds="number",
        is_exact=True,
        writes=True,
    ),
    *_all(
        2,
        """
        {0}.add_({1})
        {0}.copy_({1})
        {0}.mul_({1})
        {0}[0] = {1}
        {0}[:, :1] = {1}
        """,
        kinds="number",
        is_exact=True,
        needs_exact=True,
        writes=True,
    ),
)
