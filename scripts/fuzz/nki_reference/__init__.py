"""NKI's instructions in numpy, written from the NKI 0.6 reference and without code of trnx.

`table.ENTRIES` has for every instruction, and for the functions of `language`, a generator of legal
calls and a reference function on a `machine.Machine`. `differential.check` runs a program in the
simulator and on the reference. The tests of single instructions and the fuzzer share all of it.
Only `differential` imports trnx.
"""

from nki_reference import (
    activations,
    cores,
    dma,
    elementwise,
    gathers,
    language,
    matmul,
    movement,
    mx,
    randomness,
    reductions,
    registers,
    scans,
    selection,
)

__all__ = [
    "activations",
    "cores",
    "dma",
    "elementwise",
    "gathers",
    "language",
    "matmul",
    "movement",
    "mx",
    "randomness",
    "reductions",
    "registers",
    "scans",
    "selection",
]
