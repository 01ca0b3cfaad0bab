"""Canonicalise the ATen graph that AOTAutograd made, to the form of `docs/architecture.md`.

One file per pass; `CANONICALISE` is the order. Every pass keeps values, dtypes and the layouts of
outputs, and which outputs share storage. A pass stands twice where another one breaks what it
ensures.
"""

from __future__ import annotations

from torch import fx

from trnx.fx_passes.canonicalise.evaluate_constants import EVALUATE_CONSTANTS
from trnx.fx_passes.canonicalise.fold_constants import FOLD_CONSTANTS
from trnx.fx_passes.canonicalise.fold_round_trips import FOLD_ROUND_TRIPS
from trnx.fx_passes.canonicalise.hoist_pointwise import HOIST_POINTWISE
from trnx.fx_passes.canonicalise.merge_common import MERGE_COMMON
from trnx.fx_passes.canonicalise.name_attention import NAME_ATTENTION
from trnx.fx_passes.canonicalise.name_extremes import NAME_EXTREMES
from trnx.fx_passes.canonicalise.name_factories import NAME_FACTORIES
from trnx.fx_passes.canonicalise.name_gelu import NAME_GELU
from trnx.fx_passes.canonicalise.name_grouped_products import NAME_GROUPED_PRODUCTS
from trnx.fx_passes.canonicalise.name_groups import NAME_GROUPS
from trnx.fx_passes.canonicalise.name_masks import NAME_MASKS
from trnx.fx_passes.canonicalise.name_products import NAME_PRODUCTS
from trnx.fx_passes.canonicalise.name_random_states import NAME_RANDOM_STATES
from trnx.fx_passes.canonicalise.name_rms_norm import NAME_RMS_NORM
from trnx.fx_passes.canonicalise.narrow_norms import NARROW_NORMS
from trnx.fx_passes.canonicalise.normalise_casts import NORMALISE_CASTS
from trnx.fx_passes.canonicalise.normalise_dims import NORMALISE_DIMS
from trnx.fx_passes.canonicalise.normalise_overloads import NORMALISE_OVERLOADS
from trnx.fx_passes.canonicalise.pass_numbers import PASS_NUMBERS
from trnx.fx_passes.canonicalise.remove_dead import REMOVE_DEAD
from trnx.fx_passes.canonicalise.remove_noops import REMOVE_NOOPS
from trnx.fx_passes.canonicalise.simplify_views import SIMPLIFY_VIEWS
from trnx.fx_passes.canonicalise.split_cats import SPLIT_CATS
from trnx.fx_passes.canonicalise.split_convolution_backward import SPLIT_CONVOLUTION_BACKWARD
from trnx.fx_passes.canonicalise.widen_products import WIDEN_PRODUCTS
from trnx.fx_passes.passes import Pass, run_passes

CANONICALISE: tuple[Pass, ...] = (
    NAME_RANDOM_STATES,
    NAME_ATTENTION,
    NAME_MASKS,
    NAME_GROUPS,
    NAME_GROUPED_PRODUCTS,
    SPLIT_CONVOLUTION_BACKWARD,
    NORMALISE_DIMS,
    NAME_EXTREMES,
    SIMPLIFY_VIEWS,
    NORMALISE_CASTS,
    REMOVE_NOOPS,
    FOLD_ROUND_TRIPS,
    NORMALISE_OVERLOADS,
    NAME_FACTORIES,
    FOLD_CONSTANTS,
    EVALUATE_CONSTANTS,
    FOLD_CONSTANTS,
    NAME_GELU,
    NAME_RMS_NORM,
    NARROW_NORMS,
    NAME_PRODUCTS,
    SIMPLIFY_VIEWS,
    WIDEN_PRODUCTS,
    HOIST_POINTWISE,
    SPLIT_CATS,
    SIMPLIFY_VIEWS,
    REMOVE_NOOPS,
    FOLD_ROUND_TRIPS,
    PASS_NUMBERS,
    MERGE_COMMON,
    REMOVE_DEAD,
)

# What the matcher, partition and the engines rely on; views of views may be left.
CANONICAL = frozenset(p for one in CANONICALISE for p in one.ensures) - {"no_view_of_a_view"}


def canonicalise(gm: fx.GraphModule) -> fx.GraphModule:
    """Run `CANONICALISE` over `gm`, in place."""
    return run_passes(gm, CANONICALISE)
