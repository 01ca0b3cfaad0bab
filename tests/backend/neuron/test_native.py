"""Kernels for the device: the registry's files, and generated ones, with the installed `nki`."""

from __future__ import annotations

from typing import Any


def test_every_kernel_of_the_registry_loads_with_the_installed_nki(on_fakes: Any) -> None:
    found = on_fakes("loaded_natively")
    assert {"linear", "sdpa", "softmax", "layer_norm"} <= set(found)
    assert all(module.startswith("trnx_on_device_") for module, _ in found.values())
    # The file's own decorator is that of the installed package, not the simulator's.
    assert {kind for _, kind in found.values()} == {"nki._Kernel"}


def test_a_generated_kernel_is_a_file_of_the_user_alone(on_fakes: Any) -> None:
    found = on_fakes("generated_file")
    assert found["mode"] == 0o700
    assert found["name"].startswith("fused_")
    assert found["is_native"]
