"""The source of a region; reductions along the partitions have an emitter of their own."""

from __future__ import annotations

from collections.abc import Mapping

from trnx.nki_kernels.generator.emit import Emitter
from trnx.nki_kernels.generator.emit_across import AcrossEmitter
from trnx.nki_kernels.generator.emit_text import DECORATOR, module_text
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.nki_kernels.generator.warm_up import warm_up_function


def emit(
    name: str, summary: str, parameters: Mapping[str, str], region: TiledRegion, cores: int = 1
) -> str:
    """The source text. `parameters` are the names that the kernel's inputs have in it; it is run by
    `cores` programs."""
    emitter = _emitter_of(region)(name, parameters, region, [DECORATOR], cores)
    return module_text(summary, [*warm_up_function(region.warm_up), *emitter.functions()])


def emit_part(
    name: str, parameters: Mapping[str, str], region: TiledRegion, cores: int = 1
) -> list[str]:
    """The lines of a plain function for the region, which a kernel calls as `name`."""
    region = region.in_phases(warm_up=())  # parts follow each other
    return _emitter_of(region)(name, parameters, region, [], cores, prefix=name).functions()


def _emitter_of(region: TiledRegion) -> type[Emitter]:
    return Emitter if region.across is None else AcrossEmitter
