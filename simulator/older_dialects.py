"""Names and parameters of older NKI, and what is written instead: NKI 0.1 to 0.5 and
`neuronxcc.nki`.

The errors of the simulator and `trnx migrate` read this one table. A row names the release in which
the name went and the section of AWS's migration guide that says so. Sources: `nki/migration/
index.rst` and `release-notes/components/nki.rst` of the documentation repository, and its API pages
of NKI 0.1 (`general/nki/api/nki` at SDK 2.20 to 2.26).
"""

from __future__ import annotations

from dataclasses import dataclass

GUIDE = "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/nki/migration/index.html"

_V02 = "nki-migration-guide"
_V03 = "nki-0-3-0-update-guide"
_V04 = "nki-migrate-0-3-to-0-4"
_MASK = "nki-mask"
_BLOCKS = "nki-block-dimension-migration-guide"


@dataclass(frozen=True)
class Change:
    """A name or parameter that is gone: since when, what stands for it, where the guide says so."""

    gone: str
    instead: str
    section: str = _V02

    def __str__(self) -> str:
        return (
            f"gone since NKI {self.gone}: {self.instead} (`trnx migrate FILE` rewrites what is "
            f"mechanical; {GUIDE}#{self.section})"
        )


def _all(names: str, change: Change) -> dict[str, Change]:
    return dict.fromkeys(names.split(), change)


_SLICES = Change("0.2", "index with slices (`t[0:128, i : i + 512]`), `nl.ds`, or `.ap(...)`")
_BLOCK = Change(
    "0.2",
    "the partition dimension is the first one; make a list of tiles, or move the block dimension "
    "into the free dimensions",
    _BLOCKS,
)
_RUN = Change("0.2", "decorate with `nki.jit` and run with `nki.simulate(kernel)(*args)`")
_MEASURE = Change(
    "0.2", "decorate with `nki.jit` and measure with neuron-profile or `trnx profile`"
)
_PLACE = Change("0.2", "give `nl.ndarray` an `address=(partition, byte)`")
_COMPILER = Change("0.2", "drop it: the compiler allocates what has no `address`")
_ACCESS = Change("0.4", "nki.isa.tensor_copy with `.ap(..., scalar_offset=...)`", _V04)

# Module of today's NKI -> name -> what became of it.
NAMES: dict[str, dict[str, Change]] = {
    "nki": {
        "simulate_kernel": Change("0.3", "`nki.simulate(kernel)(*args)`", _V03),
        "baremetal": _RUN,
        "benchmark": _MEASURE,
        "profile": _MEASURE,
        "trace": Change("0.2", "decorate with `nki.jit`"),
        "kernels": Change("0.2", "the kernels live in nki-library (`nkilib`)"),
        "compiler": _COMPILER,
        "tensor": Change("0.2", "nki.language.NkiTensor"),
        "FrameworkKernel": Change("0.2", "`nki.jit` finds the framework by its arguments"),
    },
    "nki.language": {
        **_all("arange mgrid", _SLICES),
        "par_dim": _BLOCK,
        "spmd_dim": Change("0.2", "a grid of integers: `kernel[2](...)`"),
        "nc": Change("0.2", "a grid of integers: `kernel[2](...)`"),
        "atomic_rmw": Change("0.2", "nki.isa.dma_compute"),
        "all_reduce": Change("0.2", "nki.collectives.all_reduce"),
        "loop_reduce": Change("0.2", "accumulate into a tile within the loop"),
        "static_cast": Change("0.2", "nki.language.copy(x, dtype=...)"),
        "finfo": Change("0.2", "a constant of your own"),
        "fp32": Change("0.2", "a constant of your own: -3.4028235e38"),
        "bfp16": Change("0.2", "a constant of your own"),
        **_all("gemm_grid gemm_stationary_grid", _SLICES),
    },
    "nki.isa": {
        **_all("tensor_copy_dynamic_src tensor_copy_dynamic_dst", _ACCESS),
        "builtin_custom_op": Change("0.2", "an instruction of nki.isa"),
        "fp32": Change("0.2", "a constant of your own: -3.4028235e38"),
    },
    "nki.compiler": {
        **_all("sbuf psum allocation_scope multi_buffer", _PLACE),
        **_all(
            "enable_stack_allocator force_auto_alloc skip_middle_end_transformations", _COMPILER
        ),
        "no_reorder": Change("0.2", "nki.language.no_reorder"),
    },
    "NkiTensor": {
        "broadcast_to": Change("0.2", "nki.language.broadcast_to(x, shape)"),
        "astype": Change("0.2", "nki.language.copy(x, dtype=...)"),
        "expand_dims": Change("0.2", "x.expand_dim(dim)"),
        "assert_shape": Change("0.2", "an assert on x.shape"),
        "itemsize": Change("0.2", "a number of your own"),
    },
}

_MASKED = Change("0.2", "bound the slices: `t[0 : min(128, rows - start)]`", _MASK)
_TYPED = Change("0.2", "the dtype of `dst` decides")
_LAZY = Change(
    "0.2",
    "drop it: a tile is cleared where it is made; make it in the loop that fills it, so that not "
    "all of its blocks take memory at a time",
    _BLOCKS,
)

# Function, or "*" for each -> parameter -> what became of it.
PARAMETERS: dict[str, dict[str, Change]] = {
    "*": {"mask": _MASKED, "dtype": _TYPED},
    "dma_copy": {
        **_all("dst_rmw_op unique_indices", Change("0.3", "nki.isa.dma_compute", _V03)),
    },
    "sendrecv": {
        "use_gpsimd_dma": Change("0.3", "dma_engine=nki.isa.dma_engine.gpsimd_dma (or .dma)", _V03),
    },
    "register_move": {
        "imm": Change("0.3", "`src`, a register: nki.isa.register_alloc(number)", _V03)
    },
    "collective_permute_implicit_current_processing_rank_id": {
        "num_channels": Change("0.3", "drop it", _V03),
    },
    "collective_permute_implicit": {"num_channels": Change("0.3", "`channel_ids`", _V03)},
    "iota": {"expr": Change("0.2", "`dst, pattern, offset, channel_multiplier`")},
    "memset": {"shape": Change("0.2", "a `dst` from nl.ndarray")},
    "affine_select": {
        "pred": Change("0.2", "`pattern`, `offset`, `channel_multiplier` and `cmp_op`")
    },
    "broadcast_to": {"src": Change("0.2", "`x`")},
    "zeros": {"lazy_initialization": _LAZY},
    "copy": {"src": Change("0.2", "`x`")},
    "jit": {
        "mode": Change("0.3", "drop it: the arguments tell the framework", _V03),
        "platform_target": Change(
            "0.3", "the environment variable NEURON_PLATFORM_TARGET_OVERRIDE", _V03
        ),
    },
    "softmax": {"compute_dtype": _TYPED},
}

# What a call says where it lacks the first argument of an instruction.
WITHOUT_DST = Change("0.2", "each instruction takes `dst` first and returns no tile")


def changed_name(module: str, name: str) -> Change | None:
    """What became of `module.name`; `module` may be one of `neuronxcc`."""
    return NAMES.get(module.removeprefix("neuronxcc."), {}).get(name)


def changed_parameter(function: str, parameter: str) -> Change | None:
    """What became of a parameter that `function` does not take any more."""
    return PARAMETERS.get(function, {}).get(parameter) or PARAMETERS["*"].get(parameter)
