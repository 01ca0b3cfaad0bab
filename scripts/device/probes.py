"""What is measured on a device, as data: each probe is a kernel of `kernels.py` for two counts of
the instruction that it repeats. First come those that decide most (`docs/timing.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Tensor = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Probe:
    """`kernel(*tensors, *constants, count, *rest)` for `count` and twice that. `tells` names the
    constant of the timing model that the difference is about.
    """

    name: str
    kernel: str
    tensors: tuple[Tensor, ...]
    before: tuple[Any, ...]
    count: int
    after: tuple[Any, ...]
    tells: str

    def arguments(self, factor: int) -> list[Any]:
        """What follows the tensors, for `factor` times the count."""
        return [*self.before, self.count * factor, *self.after]


def _repeat(
    kind: str, columns: int, is_chain: bool, tells: str, *, count: int = 256, dtype: str = "float32"
) -> Probe:
    how = "each needing the one before" if is_chain else "independent"
    name = f"{kind}, {dtype} 128 x {columns}, {how}"
    tensors = ((dtype, (128, columns)),)
    return Probe(name, "repeat", tensors, (kind,), count, (is_chain,), tells)


def _product(dtype: str, columns: int, moving: int) -> Probe:
    name = f"product, {dtype} 128 x {columns} by {moving}"
    tensors = ((dtype, (128, columns)), (dtype, (128, moving)))
    return Probe(name, "products", tensors, (), 512, (), "matmul_min_columns, weights_cycles")


PROBES = (
    *(_repeat("exp", n, chain, "scalar_issue_cycles" if not chain else "scalar_latency_cycles")
      for n in (64, 128, 512) for chain in (False, True)),
    *(_repeat("load", n, False, "dma_issue_ns, dma_small_row_rate", count=64)
      for n in (16, 64, 256, 512, 1024, 2048, 4096)),
    _repeat("add on gpsimd", 512, False, "gpsimd_start_cycles"),
    _repeat("copy", 512, False, "vector_issue_cycles"),
    _repeat("copy", 512, True, "vector_latency_cycles, handoff_ns"),
    _repeat("copy", 512, False, "vector_half_width", dtype="bfloat16"),
    _repeat("add", 512, False, "vector_issue_cycles"),
    _repeat("tables", 512, False, "scalar_table_ns", count=64),
    _product("bfloat16", 128, 512),
    _product("bfloat16", 128, 64),
    _product("float32", 128, 512),
    _product("float32", 128, 64),
)  # fmt: skip
