"""The fuzzer of the compiler lives in scripts/fuzz."""

from __future__ import annotations

import sys
from pathlib import Path

FUZZ = str(Path(__file__).resolve().parents[3] / "scripts" / "fuzz")
if FUZZ not in sys.path:
    sys.path.append(FUZZ)
