"""Which regions may run on sizes that are larger than those of a call, and give the same results.

A size that is a symbol can be padded up to a bucket, so that one kernel serves many sizes.
`layouts` says where in a tensor the padding lies and what it holds, `rules` has one rule for each
op, and `analyse` asks them for all regions of a plan. What no rule proves runs on the exact
sizes.
"""

from trnx.fx_passes.padding.analyse import PaddedPlan, PaddedRegion, analyse_padding
from trnx.fx_passes.padding.layouts import Axis, Layout, RefusedError

__all__ = ["Axis", "Layout", "PaddedPlan", "PaddedRegion", "RefusedError", "analyse_padding"]
