"""Tokens that are drawn: temperature and top_p of each request, within the batches of transformers.

A batch in which every request is greedy runs the graph without this. In the other one each row is
drawn by the inverse of its distribution function, from one number of the request's own sequence:
the same seed gives the same text, whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.logits_process import LogitsProcessorList

from trnx.jobs.sampling import draw, number_of


class Draw(ContinuousBatchingLogitsProcessor):
    """Draws the tokens of requests that have `temperature`, `top_p` and `seed`."""

    supported_kwargs = {"temperature": float, "top_p": float, "seed": int}  # noqa: RUF012
    ignored_kwargs = ()

    def __init__(self, rows: int, device: torch.device) -> None:
        """`rows`: the most tokens of a batch."""
        # Temperature, top_p and number of every row; a graph reads them.
        self._numbers = torch.zeros(3, rows, dtype=torch.float32, device=device)
        self._numbers[1] = 1.0
        # A part of what a graph is compiled for; always true where `always` is.
        self.is_needed = False
        self.always = False

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Nothing is kept in the tensor of transformers."""

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> torch.Tensor:
        """Take what the requests of the next batch ask for, in their order."""
        rows = [_row(request.state) for request in requests_with_new_token]
        self.is_needed = self.always or any(row[0] > 0 for row in rows)
        if self.is_needed:
            self._numbers[:, : len(rows)] = torch.tensor(rows, dtype=torch.float32).T
        return torch.zeros(0, dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Scores [rows, vocabulary] whose largest are the tokens to take."""
        if not self.is_needed:
            return scores
        temperature, top_p, number = self._numbers[:, : scores.shape[0], None]
        return draw(scores, temperature, top_p, number)

    def as_list(self) -> ContinuousBatchingLogitsProcessorList:
        """The only processor of a manager."""
        found = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([self]))
        found.tensors_required = 1  # a row of transformers' tensor, which stays empty
        return found


def _row(state: Any) -> tuple[float, float, float]:
    asked = state.logit_processor_kwargs
    if not asked:
        return 0.0, 1.0, 0.0
    # A sequence that lost its place in the cache comes back with its text as a longer prompt.
    position = len(state.initial_tokens) + len(state.generated_tokens)
    return asked["temperature"], asked["top_p"], number_of(asked["seed"], position)
