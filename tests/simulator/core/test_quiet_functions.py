"""Functions that NumPy computes report no overflow, whatever other threads do."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np

from trnx.simulator.isa.activation_functions import _QUIET, _quietly


def _overflow() -> np.ndarray[Any, Any]:
    x = np.full((4, 8), 1000, np.float32)
    _quietly(np.exp, x, x)
    return x


def test_an_overflow_is_not_reported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(_overflow()).all()


def test_a_thread_that_finds_another_one_there_computes_all_the_same() -> None:
    found: list[np.ndarray[Any, Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        def work() -> None:
            thread = threading.Thread(target=lambda: found.append(_overflow()))
            thread.start()
            thread.join()

        _QUIET.run(work)
    assert np.isinf(found[0]).all()


def test_the_settings_of_the_caller_stay() -> None:
    before = np.geterr()
    _overflow()
    assert np.geterr() == before
