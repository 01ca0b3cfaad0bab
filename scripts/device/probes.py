"""What is timed on a device, as data: each probe is a kernel of `kernels.py` for two counts of the
instruction that it repeats. First come those that decide most (`docs/timing.md`).

The time of the larger count, less that of the smaller, is that of the instructions between: launch,
copies and the host are in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Tensor = tuple[str, tuple[int, ...]]
FACTORS = (1, 5)


@dataclass(frozen=True)
class Probe:
    """`kernel(*tensors, *before, count, *after)` for `count` times each of FACTORS. `tells` names
    the constants of the timing model that the difference is about; `cores` are those of a logical
    core that the kernel runs on.
    """

    name: str
    kernel: str
    tensors: tuple[Tensor, ...]
    before: tuple[Any, ...]
    count: int
    after: tuple[Any, ...]
    tells: str
    cores: int = 1

    def arguments(self, factor: int) -> list[Any]:
        """What follows the tensors, for `factor` times the count."""
        return [*self.before, self.count * factor, *self.after]

    @property
    def between(self) -> int:
        """Instructions that the larger count has more."""
        return self.count * (FACTORS[1] - FACTORS[0])


def _repeat(
    kind: str, columns: int, is_chain: bool, tells: str, *, count: int = 128, dtype: str = "float32"
) -> Probe:
    how = "each needing the one before" if is_chain else "independent"
    name = f"{kind}, {dtype} 128 x {columns}, {how}"
    tensors = ((dtype, (128, columns)),)
    return Probe(name, "repeat", tensors, (kind,), count, (is_chain,), tells)


def _product(dtype: str, columns: int, moving: int, tells: str) -> Probe:
    name = f"product, {dtype} 128 x {columns} by {moving}"
    tensors = ((dtype, (128, columns)), (dtype, (128, moving)))
    return Probe(name, "products", tensors, (), 256, (), tells)


def _alternate(second: str) -> Probe:
    name = f"exp and {second} in turns, float32 128 x 512"
    tells = "which functions share a table"
    if second == "gelu":
        tells = f"scalar_table_ns, {tells}"
    return Probe(name, "alternate", (("float32", (128, 512)),), (second,), 64, (), tells)


def _turns(is_anew: bool) -> Probe:
    name = f"load, exp and store, {'a tile for each turn' if is_anew else 'one tile for all turns'}"
    tells = "copies of tiles that are written anew"
    return Probe(name, "turns", (("float32", (128, 512)),), (), 32, (is_anew,), tells)


def _sums(is_cleared: bool) -> Probe:
    how = "cleared in front" if is_cleared else "not cleared"
    tensors = (("bfloat16", (128, 128)), ("bfloat16", (128, 512)))
    tells = "values that nothing reads"
    return Probe(
        f"product and copy out of one bank, {how}", "sums", tensors, (), 128, (is_cleared,), tells
    )


def _assigned(is_made: bool) -> Probe:
    how = "made and assigned" if is_made else "written in place"
    tensors = (("float32", (128, 512)),)
    return Probe(
        f"exp, float32 128 x 512, {how}", "assigned", tensors, (), 128, (is_made,),
        "copies of results",
    )  # fmt: skip


def _strided(step: int) -> Probe:
    name = f"copy of every {step}. column, float32 128 x 1024"
    tensors = (("float32", (128, 1024)),)
    return Probe(name, "strided", tensors, (step,), 128, (), "stride_limit_bytes")


def _both(what: str, tells: str, count: int) -> Probe:
    """Of two cores, each with half of the rows."""
    name = f"{what}, float32 2 x 128 x 2048, both cores of a logical core"
    return Probe(name, "both", (("float32", (256, 2048)),), (what,), count, (), tells, cores=2)


PROBES = (
    *(_repeat("exp", n, chain, "scalar_issue_cycles" if not chain else "scalar_latency_cycles")
      for n in (64, 128, 512) for chain in (False, True)),
    *(_repeat("load", n, False, "dma_issue_ns, dma_small_row_rate", count=64)
      for n in (16, 64, 256, 512, 1024, 2048, 4096)),
    _repeat("add on gpsimd", 512, False, "gpsimd_start_cycles"),
    _repeat("copy", 512, False, "vector_issue_cycles"),
    _repeat("copy", 16, True, "vector_latency_cycles, handoff_ns"),
    _repeat("copy", 512, False, "vector_half_width", dtype="bfloat16"),
    _repeat("add", 512, False, "vector_issue_cycles"),
    *(_alternate(name) for name in ("gelu", "tanh", "rsqrt", "silu", "square")),
    _repeat("copy on gpsimd", 512, False, "gpsimd_start_cycles"),
    _repeat("load by software", 64, False, "dma_software_issue_ns", count=64),
    _repeat("load by scalar", 512, False, "dma_issue_ns", count=64),
    *(_strided(step) for step in (2, 4, 8)),
    Probe(
        "copy out of PSUM, bfloat16 128 x 512",
        "out_of_psum", (("bfloat16", (128, 512)),), (), 128, (), "half precision out of PSUM",
    ),
    *(_turns(is_anew) for is_anew in (True, False)),
    *(_sums(is_cleared) for is_cleared in (True, False)),
    *(_assigned(is_made) for is_made in (True, False)),
    *(_product("bfloat16", columns, moving, "matmul_min_columns, weights_cycles")
      for columns, moving in ((128, 512), (128, 64), (96, 16))),
    *(_product("float32", 128, moving, "weights_fp32_cycles") for moving in (512, 64)),
    _both("load", "HBM under two cores", 64),
    _both("exchange", "the time of an exchange between cores", 32),
    _both("barrier", "meeting_ns", 32),
)  # fmt: skip
