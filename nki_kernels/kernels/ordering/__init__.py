"""Kernels that put elements in order."""
