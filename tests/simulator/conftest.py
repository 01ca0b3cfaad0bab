"""`check_isa`: one instruction on tiles in every layout, traced with values and replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest
import torch

from trnx.simulator import simulate, trace
from trnx.simulator.frontend.nki_modules import nki_modules

GUARD = 77.0


@pytest.fixture(scope="session")
def nisa() -> ModuleType:
    return nki_modules()["nki.isa"]


@pytest.fixture(scope="session")
def nl() -> ModuleType:
    return nki_modules()["nki.language"]


class Runner:
    """Runs `nisa.<name>` with tiles made of `ins` and `outs`; see `__call__`."""

    def __init__(self, nisa: ModuleType, nl: ModuleType) -> None:
        self.nisa = nisa
        self.nl = nl

    def _place(self, shape: tuple[int, ...], dtype: Any, layout: str, buffer: Any) -> Any:
        """(whole tile, view): dense, with gaps between elements, or with a margin on both sides.

        The layout `result-strided` has dense inputs and gaps in the outputs.
        """
        if layout == "dense":
            tile = self.nl.ndarray(shape, dtype=dtype, buffer=buffer)
            return tile, tile
        last = 2 * shape[-1] if layout.endswith("strided") else shape[-1] + 5
        tile = self.nl.ndarray((*shape[:-1], last), dtype=dtype, buffer=buffer)
        free = (slice(None),) * (len(shape) - 1)
        cut = slice(0, last, 2) if layout.endswith("strided") else slice(3, 3 + shape[-1])
        return tile, tile[(*free, cut)]

    def _load(self, tensor: Any, layout: str, in_psum: bool) -> Any:
        whole, view = self._place(tensor.shape, tensor.dtype, layout, self.nl.sbuf)
        if layout != "dense":
            self.nisa.memset(dst=whole, value=0)
        self.nisa.dma_copy(dst=view, src=tensor)
        if not in_psum:
            return view
        bank = self.nl.ndarray(tensor.shape, dtype=tensor.dtype, buffer=self.nl.psum)
        self.nisa.tensor_copy(dst=bank, src=view)
        return bank

    def __call__(
        self,
        name: str,
        *,
        ins: Mapping[str, torch.Tensor] | None = None,
        outs: Mapping[str, Any],
        target: str = "trn2",
        layout: str = "dense",
        psum: tuple[str, ...] = (),
        inplace: Mapping[str, str] | None = None,
        **constants: Any,
    ) -> dict[str, torch.Tensor]:
        """Outputs by name. `outs`: (shape, dtype), or a tensor with the content before the call.

        `inplace` maps an output to the input whose tile it is. Checks that nothing beside the
        destinations changes, and that a trace without values replays to the same bits.
        """
        nisa, nl = self.nisa, self.nl
        shared = dict(inplace or {})
        initial = {key: out for key, out in outs.items() if isinstance(out, torch.Tensor)}
        fresh = {key: out for key, out in outs.items() if not isinstance(out, torch.Tensor)}

        def kernel(given: dict[str, Any], before: dict[str, Any]) -> Any:
            inner = "dense" if layout == "result-strided" else layout
            tiles = {key: self._load(value, inner, key in psum) for key, value in given.items()}
            results = {}
            wholes = {}
            for key in outs:
                if key in shared:
                    results[key] = tiles[shared[key]]
                    continue
                spec = before.get(key)
                shape, dtype = (spec.shape, spec.dtype) if spec is not None else fresh[key]
                buffer = nl.psum if key in psum else nl.sbuf
                wholes[key], results[key] = self._place(tuple(shape), dtype, layout, buffer)
                if layout != "dense":
                    nisa.memset(dst=wholes[key], value=int(GUARD))
                if spec is not None:
                    nisa.dma_copy(dst=results[key], src=spec)
            getattr(nisa, name)(**results, **tiles, **constants)
            return tuple(self._store(wholes.get(key, results[key])) for key in outs)

        arguments = (dict(ins or {}), initial)
        values = simulate(kernel, target=target)(*arguments)
        values = values if isinstance(values, tuple) else (values,)
        program = trace(kernel, arguments, target=target)
        tensors = [*(ins or {}).values(), *initial.values()]
        for replayed in (program.run(tensors), program.run(tensors)):
            for first, second in zip(values, replayed, strict=True):
                assert torch.equal(_bits(second), _bits(first)), "replay differs from the first run"
        return {
            key: value if key in shared else self._cut(value, outs[key], layout)
            for key, value in zip(outs, values, strict=True)
        }

    def _store(self, tile: Any) -> Any:
        nisa, nl = self.nisa, self.nl
        result = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
        if tile.buffer is nl.psum:
            copy = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=copy, src=tile)
            tile = copy
        nisa.dma_copy(dst=result, src=tile)
        return result

    def _cut(self, whole: torch.Tensor, spec: Any, layout: str) -> torch.Tensor:
        if layout == "dense":
            return whole
        size = spec.shape[-1] if isinstance(spec, torch.Tensor) else spec[0][-1]
        cut = slice(0, None, 2) if layout.endswith("strided") else slice(3, 3 + size)
        guard = whole.to(torch.float64).clone()
        guard[..., cut] = GUARD
        assert bool((guard == GUARD).all()), "the instruction wrote beside its destination"
        return whole[..., cut]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return tensor.contiguous().view(kind)


@pytest.fixture(scope="session")
def check_isa(nisa: ModuleType, nl: ModuleType) -> Callable[..., dict[str, torch.Tensor]]:
    return Runner(nisa, nl)
