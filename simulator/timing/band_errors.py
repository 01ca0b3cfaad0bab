"""Relative errors of held-out kernels (predicted / measured - 1), sorted.

Made by `scripts/calibrate/run.py --write-band`, which also says which kernels they are.
"""

# fmt: off

HELD_OUT_ERRORS: dict[str, tuple[float, ...]] = {
}
