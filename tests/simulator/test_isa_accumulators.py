"""Accumulator registers that nothing has set: told where they are read, in repeated calls too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trnx.simulator import simulate
from trnx.simulator.errors import UninitialisedReadError


def _x(rows: int = 128) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).standard_normal((rows, 16), np.float32))


def _sums(nl, nisa, x, commands, rows=slice(None)):
    """Runs `square` on ScalarE with each command; the row sums of those that the last one reads."""
    data = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=data, src=x)
    scratch = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    result = nl.ndarray((x.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=result, value=0.0)
    for number, command in enumerate(commands):
        part = slice(None) if number == 0 else rows
        read = {"reduce_res": result[part]} if number == len(commands) - 1 else {}
        nisa.activation(
            dst=scratch[part], op=nl.square, data=data[part], reduce_op=nl.add,
            reduce_cmd=command, **read,
        )  # fmt: skip
    out = nl.ndarray(result.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result)
    return out


def test_idle_on_scalar_engine_leaves_sums(nl, nisa):
    def kernel(x):
        cmd = nisa.reduce_cmd
        return _sums(nl, nisa, x, (cmd.reset, cmd.reduce, cmd.idle, cmd.reduce, cmd.idle))

    x = _x()
    np.testing.assert_allclose(simulate(kernel)(x), 2 * (x * x).sum(1, keepdim=True), rtol=1e-6)


@pytest.mark.parametrize("commands", [("reduce",), ("idle",), ("idle", "reduce")])
def test_sums_over_nothing_are_refused(nl, nisa, commands):
    def kernel(x):
        return _sums(nl, nisa, x, [getattr(nisa.reduce_cmd, name) for name in commands])

    with pytest.raises(UninitialisedReadError, match="reset_reduce"):
        simulate(kernel)(_x())


def test_lanes_are_told_apart(nl, nisa):
    """Registers of 64 lanes are set; 128 are read."""

    def kernel(x):
        half = x[0:64]
        _sums(nl, nisa, half, (nisa.reduce_cmd.reset_reduce,))
        return _sums(nl, nisa, x, (nisa.reduce_cmd.reduce,))

    with pytest.raises(UninitialisedReadError):
        simulate(kernel)(_x())


@pytest.mark.parametrize("resets_again", [True, False])
def test_exponential_in_repeated_calls(nl, nisa, resets_again):
    """The same lines run again and again, after idle with and without a reset in between."""

    def kernel(x):
        cmd = nisa.reduce_cmd
        data = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x)
        powers = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        sums = nl.ndarray((x.shape[0], 6), dtype=nl.float32, buffer=nl.sbuf)
        for turn in range(6):
            if turn < 4 or resets_again:
                nisa.exponential(powers, data, reduce_cmd=cmd.reset_reduce)
            nisa.exponential(
                powers, data, reduce_res=sums[:, turn : turn + 1], reduce_cmd=cmd.reduce
            )
            nisa.exponential(powers, data)
        out = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=sums)
        return out

    x = _x()
    if resets_again:
        wanted = 2 * torch.exp(x).sum(1, keepdim=True).expand(-1, 6)
        np.testing.assert_allclose(simulate(kernel, "trn3")(x), wanted, rtol=1e-5)
    else:
        with pytest.raises(UninitialisedReadError, match="idle"):
            simulate(kernel, "trn3")(x)


def test_idle_gives_the_vector_engine_no_result(nl, nisa):
    def kernel(x, mask):
        data = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x)
        chosen = nl.ndarray(x.shape, dtype=nl.uint8, buffer=nl.sbuf)
        nisa.dma_copy(dst=chosen, src=mask)
        out = nl.ndarray((x.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.select_reduce(data, chosen, data, 0.0, reduce_res=out)

    with pytest.raises(UninitialisedReadError, match="idle leaves"):
        simulate(kernel)(_x(), torch.ones(128, 16, dtype=torch.uint8))
