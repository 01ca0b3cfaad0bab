"""The NKI kernel library: one kernel family a file, and the generator for fused chains."""
