"""The boundary of a graph of the device: its tensors are as they were when it was traced.

Neither Dynamo nor AOTAutograd guards what autograd makes: a tangent may be zeros without storage,
and a hook on saved tensors may give back another tensor than it was given. See
`trnx.backend.inputs`, which does the same for graphs in host memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from trnx.backend.errors import InputChangedError, UnreadableInputError
from trnx.backend.shapes import Symbols, concrete_spec
from trnx.backend.torch_internals import has_tangents, is_transformed
from trnx.fallback.layout import layout_of, restride
from trnx.fx_passes.source import source_line
from trnx.simulator.memory.tensor_spec import TensorSpec


@dataclass(frozen=True)
class DeviceInput:
    """What the graph knows of the input at `place`."""

    place: int
    name: str
    line: str
    spec: TensorSpec

    @classmethod
    def of(cls, place: int, node: fx.Node, symbols: Symbols) -> DeviceInput:
        """The input that the placeholder `node` stands for."""
        line = next((line for user in node.users if (line := source_line(user))), "")
        return cls(place, node.name, line, concrete_spec(node.meta["val"], symbols))

    def admit(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """The tensor without its history, on the device, with the strides of the graph.

        Numbers (tensors without dimensions) may come from host memory. Raises InputChangedError,
        or UnreadableInputError for what torch.func and forward-mode differentiation pass.
        """
        spec = self.spec
        if is_transformed(tensor) or has_tangents([tensor]):
            raise UnreadableInputError(
                f"input {self.name} (read at {self.line or 'an unknown line'}) cannot be read: it "
                "is a batch or a tangent, and the graph of the device has neither; compile the "
                "function that transforms, torch.compile(torch.vmap(f))"
            )
        if tensor.dtype is not spec.dtype or tensor.shape != spec.shape:
            raise InputChangedError(
                f"input {self.name} (read at {self.line or 'an unknown line'}) is {tensor.dtype} "
                f"{tuple(tensor.shape)}, and the graph was compiled for {spec.dtype} {spec.shape}: "
                "a hook on saved tensors or a custom gradient gives another tensor than it was "
                "given; keep dtype and shape"
            )
        tensor = tensor.detach().to(device)
        if tensor._is_zerotensor():
            tensor = torch.zeros_like(tensor)
        if tensor.stride() == spec.strides:
            return tensor
        like = torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="meta")
        return restride(tensor, layout_of(like))
