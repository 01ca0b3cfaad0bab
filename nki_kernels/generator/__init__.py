"""The generator: pointwise chains with broadcasting, reductions and casts become NKI kernels.

`supports_node` answers for one op while a region grows, `fused_kernel` for the whole region, and
`FusedKernel` is the region as a kernel.
"""

from trnx.nki_kernels.generator.kernel import FusedKernel, fused_kernel, supports_node
from trnx.nki_kernels.generator.table import targets

__all__ = ["FusedKernel", "fused_kernel", "supports_node", "targets"]
