"""The file `simulator/timing/band_errors.py`: errors of held-out kernels, as run.py found them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trnx.simulator.timing import band

_FILE = Path(band.__file__).with_name("band_errors.py")
_HEADER = '''"""Relative errors of held-out kernels (predicted / measured - 1), sorted.

Made by `scripts/calibrate/run.py --write-band`, which also says which kernels they are.
"""

# fmt: off
'''


def band_file(errors: Sequence[tuple[str, float]]) -> str:
    """The content for these (chip, error)."""
    lines = [_HEADER, "HELD_OUT_ERRORS: dict[str, tuple[float, ...]] = {"]
    for target in sorted({target for target, _ in errors}):
        values = sorted(round(error, 3) for chip, error in errors if chip == target)
        lines.append(f'    "{target}": (')
        for start in range(0, len(values), 10):
            lines.append(f"        {', '.join(f'{v:.3f}' for v in values[start : start + 10])},")
        lines.append("    ),")
    return "\n".join([*lines, "}", ""])


def is_current(text: str) -> bool:
    """Whether the package has this content."""
    return _FILE.read_text() == text


def write(text: str) -> None:
    """Put it into the package."""
    _FILE.write_text(text)
