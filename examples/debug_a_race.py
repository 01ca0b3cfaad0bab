"""Find a race between two cores without a device: the simulator names both lines.

python examples/debug_a_race.py
"""

from __future__ import annotations

from pathlib import Path

import torch

from trnx.errors import FindingError
from trnx.simulator import load_module, simulate


def main() -> None:
    """The racing kernel is refused, the one with a barrier is right."""
    kernel = load_module(Path(__file__).with_name("racing_cores.py")).swap_halves
    x = torch.arange(256 * 8, dtype=torch.float32).reshape(256, 8)
    try:
        simulate(kernel, "trn2", grid=2)(x, torch.zeros_like(x), False)
    except FindingError as error:
        print(f"without a barrier:\n{error}\n")
    else:
        raise SystemExit("the race was not found")
    result = simulate(kernel, "trn2", grid=2)(x, torch.zeros_like(x), True)
    torch.testing.assert_close(result, torch.cat((x[128:], x[:128])))
    print("with a barrier: right")


if __name__ == "__main__":
    main()
