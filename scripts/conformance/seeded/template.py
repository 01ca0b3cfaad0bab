"""Kernels as templates: a body with parameters, and what the documentation says of it.

A `Kernel` stands for one program for each generation and each choice of its parameters. Its body is
the body of an `@nki.jit` function; `$name` is replaced by a choice of `vary`. The line with a fault
ends in `# fault`. Bodies use `nl`, `nisa`, `ncc` and the helpers of `PREFIX`: `load(x)` an HBM
tensor in SBUF, `sb`, `ps`, `hb` unwritten tensors in SBUF, PSUM and shared HBM, `save(tile)` a
result with the values of a tile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template

import ml_dtypes
import numpy as np
import torch

TARGETS = ("trn1", "trn2", "trn3")
NEW = ("trn2", "trn3")
OLD = ("trn1", "trn2")
PREFIX = """\
import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
import numpy as np

KEPT = [1]


def sb(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def ps(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.psum)


def hb(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)


def load(x, dtype=None):
    tile = sb(x.shape, dtype or x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def in_psum(x, dtype=None):
    tile = ps(x.shape, dtype or x.dtype)
    nisa.tensor_copy(dst=tile, src=load(x))
    return tile


def save(tile):
    if tile.buffer == nl.psum:
        copied = sb(tile.shape, tile.dtype)
        nisa.tensor_copy(dst=copied, src=tile)
        tile = copied
    out = hb(tile.shape, tile.dtype)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
"""
MARK = "# fault"


@dataclass(frozen=True)
class Program:
    """One kernel on one generation; `line` is that of its fault, 0 where it is legal."""

    kernel: Kernel
    target: str
    parameters: Mapping[str, str]
    source: str
    line: int
    inputs: tuple[torch.Tensor, ...]

    @property
    def name(self) -> str:
        """Family, words and parameters."""
        chosen = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"{self.kernel.family}: {self.kernel.what} ({chosen or 'as it is'}) on {self.target}"


@dataclass(frozen=True)
class Kernel:
    """Programs of one body.

    `source` is a file and line of AWS's documentation, `what` the rule or the use in our own words,
    `args` the inputs as "name dtype sizes...". `want` gives a legal kernel's values from its inputs
    as NumPy arrays; they are compared within `within`, relative to the largest. `cores` programs
    run at once where it is more than 1.
    """

    family: str
    source: str
    what: str
    body: str
    on: tuple[str, ...] = TARGETS
    vary: Mapping[str, Sequence[str]] = field(default_factory=dict)
    args: tuple[str, ...] = ("x float32 128 64",)
    want: Callable[..., np.ndarray] | None = None
    within: float = 0.0
    cores: int = 1

    def programs(self) -> Iterator[Program]:
        """Each choice of the parameters on each generation."""
        for chosen in itertools.product(*self.vary.values()):
            parameters = dict(zip(self.vary, chosen, strict=True))
            for target in self.on:
                yield self._program(parameters, target)

    def _program(self, parameters: Mapping[str, str], target: str) -> Program:
        args = [Template(arg).substitute(parameters).split() for arg in self.args]
        lines = Template(self.body).substitute(parameters).strip().splitlines()
        head = PREFIX + f"def kernel({', '.join(arg[0] for arg in args)}):\n"
        text = head + "".join(f"    {line}\n" for line in lines)
        marked = [n for n, line in enumerate(text.splitlines(), 1) if line.endswith(MARK)]
        inputs = tuple(_tensor(arg[0], arg[1], [int(n) for n in arg[2:]]) for arg in args)
        return Program(self, target, parameters, text, marked[0] if marked else 0, inputs)


def _tensor(name: str, dtype: str, shape: list[int]) -> torch.Tensor:
    """Inputs of a name: normal numbers, or 0 to 7 for integers."""
    random = np.random.default_rng(sum(name.encode()))
    if "int" in dtype:
        return torch.from_numpy(random.integers(0, 8, shape).astype(dtype))
    values = torch.from_numpy(random.standard_normal(shape).astype(np.float32))
    return values.to(getattr(torch, dtype))


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's values; bfloat16 as ml_dtypes'."""
    if tensor.dtype == torch.bfloat16:
        return tensor.float().numpy().astype(ml_dtypes.bfloat16)
    return tensor.numpy()
