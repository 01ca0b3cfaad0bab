"""NKI helpers of attention: the maxima of the rows of a tile of scores.

ScalarE does not round the scaled score that it adds a bias to. At 1e9 and more the greatest score
of a row, scaled, and its rounded value differ by more than an exponential takes. So where scaling
rounds, VectorE scales the scores while it looks for the maxima.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.attention._masks import Hidden


def is_power_of_two(scale: float) -> bool:
    """Whether products with a scale are exact."""
    while scale > 1.0:
        scale /= 2.0
    while 0.0 < scale < 1.0:
        scale *= 2.0
    return scale == 1.0


def with_maxima(scores: Hidden, is_exact: bool, clamp: float | None) -> tuple[Hidden, nl.NkiTensor]:
    """Scores for an exponential on ScalarE, and the negated maxima `[rows, heads]` of what they
    count, of at least `clamp`. `is_exact`: scaling does not round, or the exponential's argument
    is computed by VectorE, which rounds the scaled scores as the maxima. One head is scaled in any
    case, which takes no longer."""
    data = scores.scores
    heads = data.shape[1]
    negmax = nl.ndarray((data.shape[0], heads), dtype=nl.float32, buffer=nl.sbuf)
    if scores.scale == 1.0 or (heads > 1 and is_exact):
        nisa.tensor_reduce(dst=negmax, op=nl.maximum, data=data, axis=2, negate=True)
        if scores.scale != 1.0:
            nisa.tensor_scalar(dst=negmax, data=negmax, op0=nl.multiply, operand0=scores.scale)
    else:
        scores = _scaled(scores, negmax)
    if clamp is not None:
        nisa.tensor_scalar(dst=negmax, data=negmax, op0=nl.minimum, operand0=-clamp)
    return scores, negmax


def _scaled(scores: Hidden, negmax: nl.NkiTensor) -> Hidden:
    """Scores that count once, and their negated maxima in `negmax`, by one pass."""
    data = scores.scores
    scaled = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    for head in range(data.shape[1]):
        nisa.tensor_scalar_reduce(
            dst=scaled[:, head, :],
            data=data[:, head, :],
            op0=nl.multiply,
            operand0=scores.scale,
            reduce_op=nl.maximum,
            reduce_res=negmax[:, head : head + 1],
            reduce_res_negate=True,
        )
    return Hidden(scaled, 1.0)
