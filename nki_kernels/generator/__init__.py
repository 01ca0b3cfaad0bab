"""Generated NKI kernels for chains of pointwise and last-axis reduction ops."""
