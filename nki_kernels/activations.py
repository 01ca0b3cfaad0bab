"""What may follow a matrix product or a convolution, in canonical ATen.

Patterns, references and samples of the kernels are generated from this table;
`_matmul.activation_function` has the instructions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from trnx.nki_kernels import canonical_ops  # noqa: F401  registers torch.ops.trnx

aten = torch.ops.aten

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda product: product,
    "gelu": aten.gelu.default,
    "gelu_tanh": functools.partial(aten.gelu.default, approximate="tanh"),
    "quick_gelu": torch.ops.trnx.quick_gelu.default,
    "relu": aten.relu.default,
    "silu": aten.silu.default,
    "tanh": aten.tanh.default,
    "sigmoid": aten.sigmoid.default,
}
