"""NKI at the Python prompt: `with interactive() as session:` runs nki.language and nki.isa calls at
once, outside of a kernel.

    with interactive("trn2") as session:
        a = nl.full((128, 512), 3.0, dtype=nl.float32)
        assert nl.equal(nl.add(a, 2.0), nl.full((128, 512), 5.0, dtype=nl.float32))
        session.values(a)

Here, and nowhere else, a tensor has a truth value: all of its elements are not zero. In a kernel it
has none, because there the condition would be evaluated before there are values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from trnx.simulator.frontend.arguments import pass_array, pass_tensor
from trnx.simulator.frontend.options import TraceOptions
from trnx.simulator.frontend.simulator import Simulator
from trnx.simulator.hardware import DEFAULT_TARGET
from trnx.simulator.language.recorder import CURRENT
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.tensor_spec import TensorSpec


class Session:
    """Tensors of this process for the calls, and values of the calls' tensors."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator

    def tensor(self, values: torch.Tensor | np.ndarray[Any, Any]) -> NkiTensor:
        """An HBM tensor on the memory of a torch tensor or a numpy array, on a copy where that
        memory is read-only or does not hold the values. Raises ArgumentError.
        """
        if isinstance(values, np.ndarray):
            passed = pass_array(values, "values", is_dense=False)
        else:
            passed = pass_tensor(values, "values", is_dense=False)
        return self._simulator.argument(TensorSpec.of(passed.tensor), passed.tensor, passed.kind)

    def values(self, tensor: NkiTensor) -> torch.Tensor:
        """A copy of the values of a tensor."""
        return self._simulator.values_of(tensor).clone(memory_format=torch.contiguous_format)


@contextmanager
def interactive(target: str = DEFAULT_TARGET) -> Iterator[Session]:
    """Run NKI calls at once until the block ends."""
    with torch.inference_mode(False), torch.no_grad():
        simulator = Simulator(TraceOptions(target, values=True))
        simulator.is_interactive = True
        before = CURRENT.get()
        try:
            CURRENT.set(simulator)
            yield Session(simulator)
        finally:
            # Not a function of Python, at whose start an interrupt could come.
            CURRENT.set(before)
