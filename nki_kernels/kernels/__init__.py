"""The hand-written kernels: one family a file, which registers itself; `_name.py` is a helper."""
