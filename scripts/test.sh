#!/usr/bin/env bash
# All checks: lint, format, import directions, types, tests. Arguments go to pytest (--slow: the long suites).
set -euo pipefail
# shellcheck source=scripts/_env.sh
source "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

make_venv
install_trnx test
cd "$ROOT"
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
step "ruff check";  "$VENV/bin/ruff" check .
step "ruff format"; "$VENV/bin/ruff" format --check .
step "import directions and types"; "$VENV/bin/python" scripts/check_tree.py
step "the checks check"; "$VENV/bin/python" scripts/check_tree.py --self-test
# A file stays in one process: what its fixtures made, jobs of several ranks among it, is made once.
# In the order of their names the long ones do not come last.
step "tests"; "$VENV/bin/python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
step "all checks passed"
