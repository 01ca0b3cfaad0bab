"""Kernels that read or write at indices."""
