"""`NKIObject`, the base of kernels' configuration classes; `tile_size`, the target's constants."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

from trnx.simulator.context import current_or_none
from trnx.simulator.hardware import Hardware, hardware


class _NKIType(type):
    """Takes keywords for class attributes without annotation too, also where `@dataclass` made the
    constructor, which knows annotated fields alone; nki-library's kernels do this.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        later = {name: kwargs.pop(name) for name in list(kwargs) if cls._is_plain(name)}
        missing = [] if args else cls._not_given(kwargs)
        made = super().__call__(*args, **kwargs, **dict.fromkeys(missing))
        for name, value in later.items():
            object.__setattr__(made, name, value)
        for name in missing:
            # What the constructor left at its stand-in has no value yet.
            if vars(made).get(name, cls) is None:
                object.__delattr__(made, name)
        return made

    def _not_given(cls, given: dict[str, Any]) -> list[str]:
        """Fields of a dataclass without default and without value: they may be set later."""
        fields: dict[str, Any] = getattr(cls, "__dataclass_fields__", {})
        if not fields:
            return []
        parameters = _constructor(cls)
        return [
            name
            for name in fields
            if name not in given
            and name in parameters
            and parameters[name].default is inspect.Parameter.empty
        ]

    def _is_plain(cls, name: str) -> bool:
        annotated = any(name in vars(base).get("__annotations__", {}) for base in cls.__mro__)
        if annotated or name.startswith("_") or callable(getattr(cls, name, cls)):
            return False
        return name not in _constructor(cls)


def _constructor(kind: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a class's constructor."""
    return inspect.signature(kind.__init__).parameters


class NKIObject(metaclass=_NKIType):
    """Classes with annotated fields get a keyword constructor, unless they define their own. A
    field that is not given and has no default may be set later.
    """

    def __init__(self, **kwargs: Any) -> None:
        fields = self._fields()
        unknown = [name for name in kwargs if name not in fields]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {unknown[0]!r}")
        for name in fields:
            if name in kwargs:
                setattr(self, name, kwargs[name])

    @classmethod
    def _fields(cls) -> list[str]:
        names: dict[str, None] = {}
        for base in reversed(cls.__mro__):
            names.update(dict.fromkeys(vars(base).get("__annotations__", {})))
        return list(names)


def _hardware() -> Hardware:
    """The running kernel's target; outside of kernels, that of `nki.simulate`."""
    simulator = current_or_none()
    if simulator is not None:
        return simulator.hardware
    from trnx.simulator.front import chosen_target

    return hardware(chosen_target(None))


class TileSize:
    """`nl.tile_size`: sizes of the target that the kernel is traced for."""

    pmax = 128
    gemm_stationary_fmax = 128
    # Of every generation: trn3's nc_matmul takes more columns in one instruction, but the kernels
    # that AWS wrote for trn3 (SDK/nki/deep-dives/src/mxfp-matmul) take this for 512, one PSUM bank.
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def psum_bank_fmax(self) -> int:
        """float32 elements of a PSUM bank per partition."""
        return _hardware().psum_bank_bytes // 4

    psum_fmax = psum_bank_fmax

    @property
    def psum_bank_fmax_bytes(self) -> int:
        """Bytes of a PSUM bank per partition."""
        return _hardware().psum_bank_bytes

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks per partition, less the one that DMA transposes take where they are lowered to
        TensorE (SDK/nki/api/nki.language.tile_size.rst)."""
        chip = _hardware()
        lowered = os.environ.get("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "").lower() == "true"
        return chip.psum_banks - (lowered and chip.generation > 2)

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes of SBUF per partition."""
        return _hardware().sbuf_partition_bytes

    total_available_sbuf_size = sbuf_fmax_bytes

    @property
    def sbuf_fmax(self) -> int:
        """float32 elements of SBUF per partition."""
        return _hardware().sbuf_partition_bytes // 4

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF, all partitions together."""
        return _hardware().sbuf_partition_bytes * self.pmax
