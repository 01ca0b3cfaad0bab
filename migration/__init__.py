"""`trnx migrate`: kernels of older NKI rewritten for NKI 0.6, on their source alone."""
