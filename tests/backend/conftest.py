"""Graphs are verified after every pass, in whatever these tests compile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import fx

from trnx.fx_passes import canonicalise
from trnx.fx_passes.nodes import is_assertion, is_call
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.verify import verify_functional


def _verified(one: Pass) -> Pass:
    def run(gm: fx.GraphModule) -> fx.GraphModule:
        gm = one.run(gm)
        gm.graph.lint()
        verify_functional(gm, one.name)
        for node in gm.graph.nodes:
            assert not is_call(node) or is_assertion(node) or "val" in node.meta, (one.name, node)
        return gm

    return replace(one, run=run)


@pytest.fixture(autouse=True)
def _every_pass_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = tuple(map(_verified, canonicalise.CANONICALISE))
    monkeypatch.setattr(canonicalise, "CANONICALISE", passes)
