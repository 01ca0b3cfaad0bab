"""scripts/bench/cache.py, for three seconds and four processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/bench/cache.py"


def test_killed_processes_leave_a_whole_cache() -> None:
    asked = ["--seconds", "3", "--processes", "4", "--json"]
    done = subprocess.run([sys.executable, SCRIPT, *asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["holds"]
    assert found["killed"] > 0
    assert found["tampered"] == found["entries"] > 0
    assert set(found["kinds"]) == {"graph", "plan", "prediction", "program", "source"}
    bad = ("damaged_entries", "stuck", "wrong", "failed", "damaged_after")
    assert [found[name] for name in bad] == [0] * len(bad)
