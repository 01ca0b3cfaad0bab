"""What every registered kernel promises, tested for each of its samples."""

from __future__ import annotations

import functools
import inspect
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.errors import DuplicateKernelError
from trnx.nki_kernels.spec import Bindings, KernelSpec, Launch, Sample
from trnx.nki_kernels.spec_checks import checked_spec
from trnx.simulator.errors import Reject
from trnx.simulator.frontend.subset import check_subset
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

TARGETS = ("trn1", "trn2", "trn3")
SEED = 20
NAMES = [spec.name for spec in registry.kernels()]


def samples_of(name: str) -> list[Sample]:
    return list(registry.kernels()[name].samples(torch.Generator().manual_seed(SEED)))


@functools.lru_cache(maxsize=1)  # tests come in the order of the kernels
def cached_samples(name: str) -> list[Sample]:
    return samples_of(name)


@functools.cache
def cases() -> list[Any]:
    return [
        pytest.param(name, index, id=f"{name}-{sample.note or index}")
        for name in NAMES
        for index, sample in enumerate(samples_of(name))
    ]


def bindings_of(sample: Sample) -> Bindings:
    return Bindings(
        {
            name: TensorSpec.of(value) if isinstance(value, torch.Tensor) else value
            for name, value in sample.values.items()
        }
    )


def accepted_launch(spec: KernelSpec, sample: Sample, target: str) -> Launch | None:
    """None where the kernel refuses the sample, which needs a reason."""
    refusal = spec.supports(bindings_of(sample), hardware(target))
    if refusal is not None:
        assert isinstance(refusal, Reject)
        assert refusal.reason
        return None
    return spec.launch(bindings_of(sample), hardware(target))


def real_arguments(launch: Launch, sample: Sample) -> tuple[Any, ...]:
    """The arguments of a launch with the sample's tensors in the place of their specs."""
    names = iter(launch.tensor_names)
    arguments = tuple(
        sample.values[next(names)] if isinstance(argument, TensorSpec) else argument
        for argument in launch.arguments
    )
    assert next(names, None) is None
    return arguments


def as_tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def assert_close(result: torch.Tensor, expected: torch.Tensor, depth: int, error: float) -> None:
    """Float32 sums of `depth` terms in any order, one rounding to the result's dtype, `error`."""
    if expected.dtype is torch.bool:
        assert result.dtype is torch.uint8
        result = result.bool()
    if expected.dtype is torch.int64:  # a kernel writes the words of each
        assert result.dtype is torch.int32
        result = result.contiguous().view(torch.int64).squeeze(-1)
    assert result.dtype is expected.dtype
    assert result.shape == expected.shape
    if not expected.dtype.is_floating_point:
        assert torch.equal(result, expected)
        return
    finite = expected.isfinite()
    assert torch.equal(result[~finite].isnan(), expected[~finite].isnan())
    scale = expected[finite].abs().max().item() if finite.any() else 0.0
    rounding = torch.finfo(expected.dtype).eps
    sums = torch.finfo(torch.float32).eps * (8 + math.sqrt(depth)) * scale + error
    torch.testing.assert_close(
        result.double(), expected.double(), rtol=2 * rounding, atol=sums, equal_nan=True
    )


def shape_in_memory(result: torch.Tensor) -> tuple[int, ...]:
    """The shape that a kernel gives a result: an int64 has two words."""
    return (*result.shape, 2) if result.dtype is torch.int64 else tuple(result.shape)


@pytest.mark.parametrize("name", NAMES)
def test_spec_is_complete(name: str) -> None:
    spec = registry.kernels()[name]
    samples = samples_of(name)
    assert spec.patterns
    bound = set(samples[0].values)
    for pattern in spec.patterns:
        parameters = set(inspect.signature(pattern.function).parameters)
        assert parameters.isdisjoint(pattern.constants)
        assert parameters | set(pattern.constants) == bound
    assert spec.strided <= bound
    notes = [sample.note for sample in samples]
    assert all(notes)
    assert len(set(notes)) == len(notes)


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_seeded_and_cover_edges(name: str) -> None:
    first, second = samples_of(name), samples_of(name)
    sizes: set[int] = set()
    dtypes: set[torch.dtype] = set()
    for one, other in zip(first, second, strict=True):
        for key, value in one.values.items():
            if isinstance(value, torch.Tensor):
                same = {"rtol": 0, "atol": 0, "equal_nan": True}
                torch.testing.assert_close(value, other.values[key], **same)
                sizes.update(value.shape)
                dtypes.add(value.dtype)
    assert {1, 127, 128, 129} <= sizes
    assert {torch.float32, torch.bfloat16} <= dtypes


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize(("name", "index"), cases())
def test_simulation_equals_reference(name: str, index: int, target: str) -> None:
    spec, sample = registry.kernels()[name], cached_samples(name)[index]
    launch = accepted_launch(spec, sample, target)
    if launch is None:
        return
    run = simulator.simulate(launch.kernel, target=target, keep_strides=True)
    results = as_tuple(run(*real_arguments(launch, sample)))
    expected = as_tuple(spec.reference(**sample.values))
    tensors = [v for v in sample.values.values() if isinstance(v, torch.Tensor)]
    depth = max((size for tensor in tensors for size in tensor.shape), default=1)
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert_close(result, wanted, depth, sample.error)


@pytest.mark.parametrize(("name", "index"), cases())
def test_traces_within_capacity_on_every_target(name: str, index: int) -> None:
    spec, sample = registry.kernels()[name], cached_samples(name)[index]
    expected = as_tuple(spec.reference(**sample.values)) if sample.values else ()
    for target in TARGETS:
        launch = accepted_launch(spec, sample, target)
        if launch is None:
            continue
        program = simulator.trace(launch.kernel, launch.arguments, target=target, values=False)
        assert program.instruction_count > 0
        assert program.peak_sbuf_bytes <= hardware(target).sbuf_partition_bytes
        assert program.peak_psum_bytes <= hardware(target).psum_partition_bytes
        assert [out.shape for out in program.outputs] == [shape_in_memory(t) for t in expected]


@pytest.mark.parametrize("name", NAMES)
def test_some_samples_are_accepted_on_every_target(name: str) -> None:
    spec = registry.kernels()[name]
    for target in TARGETS:
        launches = [accepted_launch(spec, s, target) for s in cached_samples(name)]
        assert any(launches)


@pytest.mark.parametrize("name", NAMES)
def test_the_front_end_of_the_device_can_parse_the_kernels(name: str) -> None:
    launches = [accepted_launch(registry.kernels()[name], s, "trn2") for s in cached_samples(name)]
    parsed = {id(launch.kernel): launch.kernel for launch in launches if launch is not None}
    assert parsed
    for kernel in parsed.values():
        check_subset(kernel)  # raises


@pytest.mark.parametrize("name", NAMES)
def test_specs_of_the_package_pass_the_check_of_their_sources(name: str) -> None:
    checked_spec(registry.kernels()[name])  # raises


def test_kernels_of_the_package_share_their_helpers() -> None:
    linear, mlp = (registry.kernels()[name].kernel.function for name in ("linear", "gated_mlp"))
    assert linear.__globals__["segments_of"] is mlp.__globals__["segments_of"]


@pytest.mark.parametrize("name", NAMES)
def test_both_modes_of_tracing_give_equal_programs(name: str) -> None:
    spec = registry.kernels()[name]
    for sample in cached_samples(name)[::5]:
        launch = accepted_launch(spec, sample, "trn2")
        if launch is None:
            continue
        arguments = real_arguments(launch, sample)
        dry = simulator.trace(launch.kernel, launch.arguments, target="trn2", values=False)
        wet = simulator.trace(launch.kernel, arguments, target="trn2", values=True)
        assert dry.inputs == wet.inputs
        assert dry.outputs == wet.outputs
        assert dry.rows == wet.rows
        assert dry.totals == wet.totals
        tensors = [sample.values[tensor] for tensor in launch.tensor_names]
        for one, other in zip(dry.run(tensors), wet.run(tensors), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_refuse_complex_tensors_with_a_reason(name: str) -> None:
    spec, sample = registry.kernels()[name], cached_samples(name)[0]
    bindings = bindings_of(sample)
    odd = Bindings(
        {
            key: replace(value, dtype=torch.complex64) if isinstance(value, TensorSpec) else value
            for key, value in bindings.items()
        }
    )
    refusal = spec.supports(odd, hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert "complex64" in refusal.reason


@pytest.mark.parametrize("name", NAMES)
def test_cost_counts_the_work(name: str) -> None:
    spec = registry.kernels()[name]
    for sample in cached_samples(name):
        if accepted_launch(spec, sample, "trn2") is None:
            continue
        cost = spec.cost(bindings_of(sample))
        assert min(cost.matmul_flops, cost.vector_flops) >= 0
        assert cost.hbm_bytes > 0


def test_kernels_come_in_the_order_of_their_names() -> None:
    assert NAMES
    assert sorted(NAMES) == NAMES


def test_a_name_is_registered_once() -> None:
    spec = registry.kernels()[NAMES[0]]
    with pytest.raises(DuplicateKernelError, match=spec.name):
        registry.register(spec)


OUTSIDE = """
import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Cost, KernelSpec, Pattern, Sample


@nki.jit
def twice_kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


def pattern(x):
    return torch.ops.aten.mul.Tensor(x, 2.0)


register(
    KernelSpec(
        name="twice",
        patterns=(Pattern(pattern),),
        supports=lambda b, hw: None,
        reference=lambda x: x * 2.0,
        cost=lambda b: Cost(vector_flops=b.x.numel, hbm_bytes=2 * b.x.nbytes),
        samples=lambda generator: [Sample({"x": torch.randn(4, 4, generator=generator)}, "small")],
        kernel=twice_kernel,
    )
)
"""


def test_a_kernel_file_outside_the_package_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registry", registry.Registry())
    monkeypatch.setattr(registry, "_loaded", {})
    file = tmp_path / "twice.py"
    file.write_text(OUTSIDE)
    registry.load_kernels(file)
    registry.load_kernels(str(file))
    assert [spec.name for spec in registry._registry] == ["twice"]
    spec = registry._registry["twice"]
    (sample,) = spec.samples(torch.Generator().manual_seed(SEED))
    launch = spec.launch(bindings_of(sample), hardware("trn2"))
    (result,) = as_tuple(simulator.simulate(launch.kernel)(*real_arguments(launch, sample)))
    assert torch.equal(result, sample.values["x"] * 2)


def test_a_file_in_the_folder_of_kernels_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registry", registry.Registry())
    monkeypatch.setattr(registry, "_KERNELS", tmp_path)
    (tmp_path / "family").mkdir()
    (tmp_path / "twice.py").write_text(OUTSIDE)
    (tmp_path / "family" / "again.py").write_text(OUTSIDE.replace('"twice"', '"again"'))
    (tmp_path / "family" / "_helper.py").write_text("1 / 0")
    registry._load_package.__wrapped__()
    assert [(spec.name, spec.builtin) for spec in registry._registry] == [
        ("again", True),
        ("twice", True),
    ]


def test_a_second_file_may_not_take_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", registry.Registry())
    monkeypatch.setattr(registry, "_loaded", {})
    for stem in ("one", "two"):
        (tmp_path / f"{stem}.py").write_text(OUTSIDE)
    registry.load_kernels(tmp_path / "one.py")
    with pytest.raises(DuplicateKernelError, match="twice"):
        registry.load_kernels(tmp_path / "two.py")
