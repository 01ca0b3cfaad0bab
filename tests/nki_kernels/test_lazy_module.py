"""A graph module that generates its code when it is first called or read."""

from __future__ import annotations

from unittest import mock

import torch
from torch import fx

from trnx.nki_kernels.lazy_module import LazyModule


def _graph(number: int) -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.add, (x, number)),))
    return graph


def test_code_is_generated_once_and_when_it_is_called() -> None:
    generate = fx.Graph.python_code
    with mock.patch.object(fx.Graph, "python_code", autospec=True, side_effect=generate) as made:
        module = LazyModule(torch.nn.Module(), _graph(1))
        assert made.call_count == 0
        assert [module(torch.zeros(2))[0].tolist() for _ in range(2)] == [[1.0, 1.0]] * 2
        assert made.call_count == 1


def test_each_module_has_code_of_its_own() -> None:
    one, two = (LazyModule(torch.nn.Module(), _graph(n)) for n in (1, 2))
    assert "add(x, 2)" in two.code
    assert "add(x, 1)" in one.code
    assert (one(torch.zeros(()))[0].item(), two(torch.zeros(()))[0].item()) == (1.0, 2.0)


def test_an_edited_graph_is_compiled_anew() -> None:
    module = LazyModule(torch.nn.Module(), _graph(1))
    assert module(torch.zeros(()))[0].item() == 1.0
    (call,) = (node for node in module.graph.nodes if node.op == "call_function")
    call.args = (call.args[0], 5)
    module.recompile()
    assert "add(x, 5)" in module.code
    assert module(torch.zeros(()))[0].item() == 5.0
