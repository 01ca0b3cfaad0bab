"""What a plan is for: training, prefill or decode, with batch, sequence and precision."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from trnx.backend.plan.errors import PlanError


class Mode(StrEnum):
    """What a step does."""

    TRAIN = "train"
    PREFILL = "prefill"
    DECODE = "decode"


class Optimizer(StrEnum):
    """`adamw-fp32` keeps a master copy and both moments in float32; `adamw` both moments in the
    weights' dtype, as torch.optim.AdamW does; `sgd` keeps nothing."""

    ADAMW_FP32 = "adamw-fp32"
    ADAMW = "adamw"
    SGD = "sgd"


class Precision(StrEnum):
    """Dtype of weights, gradients and activations."""

    BF16 = "bf16"
    FP32 = "fp32"


@dataclass(frozen=True)
class Workload:
    """One step: `batch` sequences of `sequence` tokens over all ranks.

    Training runs `micro_batch` sequences of a rank at a time. Decode makes one token for each
    sequence, with `sequence` tokens in the KV cache. `checkpointing` keeps the input of each block
    alone and computes the block again in backward. Optimizer states are divided over the data
    ranks (ZeRO 1).
    """

    mode: Mode = Mode.TRAIN
    batch: int = 1
    sequence: int = 4096
    micro_batch: int = 1
    optimizer: Optimizer = Optimizer.ADAMW_FP32
    precision: Precision = Precision.BF16
    checkpointing: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "sequence", "micro_batch"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name}={getattr(self, name)}: at least 1 is needed")
        if self.training and self.batch % self.micro_batch:
            raise PlanError(
                f"batch={self.batch} is not a multiple of micro_batch={self.micro_batch}"
            )

    @property
    def training(self) -> bool:
        """Whether there is a backward."""
        return self.mode is Mode.TRAIN

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, gradients and activations."""
        return torch.bfloat16 if self.precision is Precision.BF16 else torch.float32

    @property
    def state_bytes(self) -> int:
        """Optimizer state of one parameter."""
        if not self.training or self.optimizer is Optimizer.SGD:
            return 0
        return 12 if self.optimizer is Optimizer.ADAMW_FP32 else 2 * self.dtype.itemsize

    @property
    def rows(self) -> int:
        """Tokens of one sequence that a step computes."""
        return 1 if self.mode is Mode.DECODE else self.sequence

    @property
    def tokens(self) -> int:
        """Tokens of one step, over all ranks."""
        return self.batch * self.rows

    def sequences(self, data: int) -> int:
        """Sequences that one rank computes at a time."""
        return self.micro_batch if self.training else self.batch // data

    def micro_batches(self, data: int) -> int:
        """How often in a step; 0 where the batch does not divide."""
        if not self.training:
            return 1
        own = self.batch // data
        return own // self.micro_batch if own % self.micro_batch == 0 else 0

    def context(self, causal: bool) -> float:
        """Tokens that a token sees on average."""
        if self.mode is Mode.DECODE or not causal:
            return float(self.sequence)
        return (self.sequence + 1) / 2
