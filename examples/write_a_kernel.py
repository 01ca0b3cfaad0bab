"""Run a kernel of your own in the simulator, with all checks, and compare it with torch.

    python examples/write_a_kernel.py

`docs/adding_a_kernel.md` goes on from here: `torch.compile` selects it by a pattern.
"""

from __future__ import annotations

from pathlib import Path

import torch

from trnx.simulator import load_module, simulate


def reference(x: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    """The same in torch."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], scale, eps)


def main() -> None:
    """Ragged sizes on every generation."""
    kernel = load_module(Path(__file__).with_name("rms_scale.py")).rms_scale
    torch.manual_seed(0)
    for target in ("trn1", "trn2", "trn3"):
        for rows in (1, 127, 128, 300):
            x, scale = torch.randn(rows, 96), torch.randn(96)
            result = simulate(kernel, target)(x, scale, 1e-6)
            torch.testing.assert_close(result, reference(x, scale, 1e-6), rtol=1e-5, atol=1e-5)
        print(f"{target}: 1, 127, 128 and 300 rows agree with torch")


if __name__ == "__main__":
    main()
