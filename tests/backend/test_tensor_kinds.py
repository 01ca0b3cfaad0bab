"""Every kind of tensor that PyTorch can hand to a graph, in every role: equal to eager, or refused.

On both engines: NKI wherever a kernel can take the op, and XLA alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch.testing._internal.two_tensor import TwoTensor

import trnx
from trnx.errors import InputChangedError, UnreadableInputError

Op = Callable[[torch.Tensor], torch.Tensor]

NKI = {"select": "legal"}
XLA = {"select": "none", "fallback": "xla"}
EAGER = {"select": "none", "fallback": "eager"}
ENGINES = [
    pytest.param(NKI, id="nki"),
    pytest.param(XLA, id="xla"),
]
EVERY_ENGINE = [*ENGINES, pytest.param(EAGER, id="eager")]
SHAPE = (9, 6)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def dense() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


def complexes() -> torch.Tensor:
    return torch.complex(dense(), dense().flip(0))


def negative() -> torch.Tensor:
    return complexes().conj().imag


def zeros(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch._efficientzerotensor(SHAPE, dtype=dtype)


def read_only() -> torch.Tensor:
    array = dense().numpy().copy()
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it could be written to
        return torch.from_numpy(array)


def mapped(tmp_path: Path) -> torch.Tensor:
    file = tmp_path / "tensor"
    dense().numpy().tofile(file)
    return torch.from_file(str(file), shared=False, size=dense().numel()).view(SHAPE)


def unaligned() -> torch.Tensor:
    array = np.empty(dense().nbytes + 1, np.uint8)[1:].view(np.float32).reshape(SHAPE)
    array[...] = dense().numpy()
    return torch.from_numpy(array)


def in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return dense() * 1


class PlainSubclass(torch.Tensor):
    """A subclass without behaviour of its own."""


def relu(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 1


def product(x: torch.Tensor) -> torch.Tensor:
    return x * (2 + 1j) + 1


def widened(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.float()) + 1


def increment(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int64) + 1


KINDS: dict[str, tuple[Callable[[], torch.Tensor], Op]] = {
    "plain": (dense, relu),
    "negative": (negative, relu),
    "negative transposed": (lambda: complexes().t().conj().imag[1:], relu),
    "negative expanded": (lambda: negative()[:1].expand(SHAPE), relu),
    "negative overlapping": (lambda: negative().as_strided((3, 3), (2, 2), 3), relu),
    "negative 0-d": (lambda: negative()[3, 3], relu),
    "negative empty": (lambda: negative()[:0], relu),
    "negative bfloat16": (lambda: torch._neg_view(dense().bfloat16()), relu),
    "negative integers": (lambda: torch._neg_view(torch.arange(12).view(3, 4)), increment),
    "negative to a reduction": (negative, lambda x: x.cumsum(0)),
    "negative to a product": (negative, lambda x: torch.softmax(x @ x.t(), -1)),
    "conjugate": (lambda: complexes().conj(), product),
    "conjugate transposed": (lambda: complexes().t().conj()[2:], product),
    "conjugate to its parts": (lambda: complexes().conj(), lambda x: torch.relu(x.imag) + x.real),
    "negative conjugate": (lambda: torch._neg_view(complexes().conj()), product),
    "zero": (zeros, relu),
    "zero complex": (lambda: zeros(torch.complex64).conj(), product),
    "zero to a product": (zeros, lambda x: torch.softmax(x @ x.t(), -1)),
    "expanded": (lambda: dense()[:1].expand(SHAPE), relu),
    "empty": (lambda: dense()[:0], relu),
    "0-d": (lambda: torch.tensor(2.0), relu),
    "offset": (lambda: dense()[2:], relu),
    "overlapping": (lambda: dense().as_strided((5, 5), (1, 1)), relu),
    "read-only": (read_only, relu),
    "unaligned": (unaligned, relu),
    "shared memory": (lambda: dense().share_memory_(), relu),
    "inference": (in_inference_mode, relu),
    "parameter": (lambda: torch.nn.Parameter(dense()), relu),
    "plain subclass": (lambda: dense().as_subclass(PlainSubclass), relu),  # type: ignore[arg-type]
    "wrapper subclass": (lambda: TwoTensor(dense(), dense() + 1), relu),
    "complex128": (lambda: complexes().to(torch.complex128), product),
    "float8": (lambda: dense().to(torch.float8_e4m3fn), widened),
    "float8 with two zeros": (lambda: dense().to(torch.float8_e5m2), widened),
    "uint16": (lambda: (dense().abs() * 9000).to(torch.uint16), increment),
    "uint32": (lambda: torch.full(SHAPE, 2**32 - 1).to(torch.uint32), increment),
    "uint64": (lambda: torch.full(SHAPE, 2**62).to(torch.uint64), increment),
    "bool": (lambda: dense() > 0, widened),
    "bool view": (lambda: (dense() > 0).to(torch.uint8).view(torch.bool), widened),
    "bytes of bool": (lambda: dense() > 0, lambda x: x.view(torch.uint8) + 1),
    "sparse": (lambda: dense().relu().to_sparse(), lambda x: torch.relu(x.to_dense()) + 1),
}
# Eager saves no inference tensor, and a sum of bfloat16 rounds by its order.
NOT_SAVED = ("sparse", "wrapper subclass", "inference", "negative bfloat16")
DIFFERENTIABLE = [name for name in KINDS if name not in NOT_SAVED]
# Eager gives the result of a tensor without storage strides of its own.
STRIDELESS = ("zero", "zero complex", "zero to a product")


def check(found: Any, expected: Any, *, strides: bool = True) -> None:
    """Type, dtype, strides and values are equal."""
    assert type(found) is type(expected)
    if isinstance(expected, TwoTensor):
        check(found.a, expected.a)
        check(found.b, expected.b)
        return
    torch.testing.assert_close(found, expected, check_stride=strides)


def compiled(function: Callable[..., Any], engine: dict[str, str]) -> Callable[..., Any]:
    return torch.compile(function, backend="trnx", options=engine)


def of_values(x: torch.Tensor) -> torch.Tensor:
    """A real number for each element, so that every kind has a gradient through it."""
    return torch.view_as_real(x).sum(-1) if x.is_complex() else x.float()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_input_is_read_as_in_eager(kind: str, engine: dict[str, str]) -> None:
    make, op = KINDS[kind]
    with torch.no_grad():
        function, given = compiled(op, engine), make()
        for value in (given, given, make()):
            check(function(value), op(value), strides=kind not in STRIDELESS)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_is_read_as_in_eager(kind: str, engine: dict[str, str]) -> None:
    make, op = KINDS[kind]
    constant, x = make(), torch.ones(3)
    with torch.no_grad():
        function = compiled(lambda x: (op(constant), x + 1), engine)
        for _ in range(2):
            check(function(x)[0], op(constant), strides=kind not in STRIDELESS)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", DIFFERENTIABLE)
def test_what_is_saved_for_backward_is_read_as_in_eager(kind: str, engine: dict[str, str]) -> None:
    make, op = KINDS[kind]

    def loss(weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (of_values(op(value)) * weight * weight).sum()

    function, value = compiled(loss, engine), make()
    weight = torch.full((), 2.0, requires_grad=True)
    for _ in range(2):
        (found,) = torch.autograd.grad(function(weight, value), weight)
        (expected,) = torch.autograd.grad(loss(weight, value), weight)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)


GRADIENTS = [
    "plain", "negative", "negative transposed", "negative expanded", "negative 0-d", "zero",
    "conjugate", "conjugate transposed", "negative conjugate", "zero complex", "expanded",
    "empty", "offset", "read-only", "unaligned", "inference",
]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", GRADIENTS)
def test_a_gradient_is_read_as_in_eager(kind: str, engine: dict[str, str]) -> None:
    gradient = KINDS[kind][0]()

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * x * 1.5

    run = compiled(function, engine)
    for _ in range(2):
        x = torch.ones(gradient.shape, dtype=gradient.dtype, requires_grad=True)
        (found,) = torch.autograd.grad(run(x), x, gradient)
        (expected,) = torch.autograd.grad(function(x), x, gradient)
        torch.testing.assert_close(found, expected, check_stride=False)


MADE_INSIDE: dict[str, Op] = {
    "conj().imag": lambda x: torch.relu(x.conj().imag) + 1,
    "twice": lambda x: torch.relu(x.conj().imag.conj().neg()) + x.conj().conj().imag,
    "neg_view": lambda x: torch.relu(torch._neg_view(x.real)) + 1,
    "a view of it": lambda x: torch.relu(x.conj().imag.t()[1:]) + 1,
    "to a product": lambda x: x.conj().imag @ x.real.t(),
    "to an index": lambda x: x.conj().imag[torch.tensor([1, 0])] + 1,
    "fft": lambda x: torch.fft.fft(x.real).conj().imag.cumsum(0),
    "zero": lambda x: torch.relu(x.real) * torch._efficientzerotensor(SHAPE) + x.imag,
    "returned": lambda x: x.conj().imag,
    "copied": lambda x: x.conj().imag.clone(),
}


@pytest.mark.parametrize("engine", EVERY_ENGINE)
@pytest.mark.parametrize("name", MADE_INSIDE)
def test_an_intermediate_is_read_as_in_eager(name: str, engine: dict[str, str]) -> None:
    op = MADE_INSIDE[name]
    for x in (complexes(), complexes().conj(), complexes().t().conj().t()):
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(op, engine)(x), op(x), check_stride=name != "zero")


@pytest.mark.parametrize("engine", ENGINES)
def test_subclasses_of_negative_and_zero_tensors_have_their_values(engine: dict[str, str]) -> None:
    """Eager itself reads the memory of what such a subclass holds."""
    for inner in (negative(), zeros()):
        found = compiled(relu, engine)(TwoTensor(inner, inner))
        torch.testing.assert_close(found.a, relu(inner), check_stride=False)


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("engine", EVERY_ENGINE)
@pytest.mark.parametrize(
    "lose",
    [
        lambda x: freed(x),
        lambda x: (x, freed(x))[0],
        lambda x: (x, x.untyped_storage().resize_(16))[0],
    ],
    ids=["freed", "freed, kept", "shrunk"],
)
@pytest.mark.parametrize("part", [slice(None), slice(4, None)], ids=["whole", "a view"])
def test_a_lost_storage_is_refused_and_comes_back(
    lose: Callable[[torch.Tensor], Any], part: slice, engine: dict[str, str]
) -> None:
    whole = dense()
    given, bytes_before = whole[part], whole.untyped_storage().nbytes()
    function = compiled(relu, engine)
    for _ in range(2):
        torch.testing.assert_close(function(given), relu(given))
        lose(whole)
        with pytest.raises(UnreadableInputError, match=r"(?s)input .*test_tensor_kinds.*restore"):
            function(given)
        whole.untyped_storage().resize_(bytes_before)
        whole.copy_(dense())


REFUSED: dict[str, tuple[Callable[[], torch.Tensor], type[Exception], str]] = {
    "mkldnn": (lambda: dense().to_mkldnn(), UnreadableInputError, "to_dense"),
    "meta": (lambda: dense().to("meta"), BackendCompilerFailed, "UnsupportedDeviceError.*cpu"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_memory_to_read_is_refused(kind: str, engine: dict[str, str]) -> None:
    make, error, message = REFUSED[kind]
    with pytest.raises(error, match=f"(?s){message}"):
        compiled(lambda x: x * 2, engine)(make())


def test_a_saved_tensor_that_was_freed_is_refused() -> None:
    x = dense().requires_grad_()
    loss = compiled(lambda x: (torch.relu(x) * x).sum(), NKI)(x)
    freed(x.detach())
    with pytest.raises(UnreadableInputError, match="restore the storage"):
        loss.backward()


UNPACKED: dict[str, tuple[Op, bool]] = {
    "negative": (lambda x: torch._neg_view(-x), True),
    "of other strides": (lambda x: x.t().contiguous().t() if x.ndim == 2 else x, True),
    "of another dtype": (lambda x: x.double(), False),
    "of another shape": (lambda x: x.reshape(-1)[:3], False),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", UNPACKED)
def test_hooks_may_give_back_equal_tensors_alone(name: str, engine: dict[str, str]) -> None:
    unpack, is_equal = UNPACKED[name]
    x = dense().requires_grad_()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (torch.sigmoid(x) * torch.tanh(x)).sum()

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        value = compiled(loss, engine)(x)
    if is_equal:
        (expected,) = torch.autograd.grad(loss(x), x)
        torch.testing.assert_close(torch.autograd.grad(value, x)[0], expected)
        return
    with pytest.raises(InputChangedError, match="hook on saved tensors"):
        value.backward()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it
def test_torch_func_inside_of_compile() -> None:
    """Derivatives of derivatives: their gradients are zero in part."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))

    def curvature(points: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.func.hessian(lambda x: net(x).sum()))(points)

    points = torch.randn(3, 4)
    parameters = list(net.parameters())
    found = compiled(curvature, NKI)(points)
    expected = curvature(points)
    torch.testing.assert_close(found, expected)
    every = {"allow_unused": True}
    found = torch.autograd.grad(found.square().sum(), parameters, **every)
    expected = torch.autograd.grad(expected.square().sum(), parameters, **every)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            torch.zeros(()) if one is None else one.sum(),
            torch.zeros(()) if other is None else other.sum(),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_batches_cast_numbers(dtype: torch.dtype) -> None:
    """`torch.vmap` passes `aten._to_copy` a number where it stands beside the result of a sum."""

    def scaled(rows: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row.sum() / (1 + row.abs().max()))(rows)

    rows = torch.arange(-9, 11).view(4, 5).to(dtype)
    found, expected = compiled(scaled, NKI)(rows), scaled(rows)
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.vmap(f),
        lambda f: torch.func.grad(lambda x: f(x).sum()),
        lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1],
    ],
    ids=["vmap", "grad", "jvp"],
)
def test_torch_func_outside_of_compile(transform: Callable[[Op], Op]) -> None:
    x = dense()
    torch.testing.assert_close(transform(compiled(relu, NKI))(x), transform(relu)(x))


def test_a_file_in_memory_is_read(tmp_path: Path) -> None:
    for engine in (NKI, XLA):
        torch._dynamo.reset()
        x = mapped(tmp_path)
        torch.testing.assert_close(compiled(relu, engine)(x), relu(x))


def test_the_check_of_inputs_costs_nothing_when_nothing_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the second call on no tensor is looked at in Python."""
    x = dense()
    with torch.no_grad():
        function = compiled(relu, NKI)
        function(x)
        function(x)
        monkeypatch.setattr("trnx.backend.inputs.Expected.conform", None)
        torch.testing.assert_close(function(x), relu(x))
        torch.testing.assert_close(function(dense()), relu(x))


def test_the_ledger_has_nothing_of_negative_tensors() -> None:
    with trnx.collect_reports() as reports:
        compiled(lambda x: torch.relu(x.conj().imag) + 1, NKI)(complexes())
    assert any(region.engine == "nki" for report in reports for region in report.regions)
