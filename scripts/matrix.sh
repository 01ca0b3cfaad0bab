#!/usr/bin/env bash
# Which Pythons and releases of torch trnx works with: each pair that can be had here is installed into an environment
# of its own and tested; of the others this says why they could not be had.
#
#   bash scripts/matrix.sh [--json] [--dry-run]
#
# Pythons are taken from the PATH (python3.11 to python3.14), torch from pip's index. A wheel for the CPU is taken
# where the index has one (PIP_EXTRA_INDEX_URL); one that needs CUDA's libraries only with 9 GB of free disk. --dry-run
# says what would be tested. The last line with --json is one object; exit status 0 if and only if nothing failed and
# something was tested (with --dry-run: can be).
set -euo pipefail
# shellcheck source=scripts/_env.sh
source "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

PYTHONS=(3.11 3.12 3.13 3.14)
TORCHES=(2.13 2.14 2.15)
SUITES=(tests/backend/test_entry.py tests/backend/test_dynamic.py tests/backend/test_training.py tests/backend/test_fork.py
    tests/backend/test_opinfo_sample.py tests/fx_passes tests/fallback/test_xla.py)
JSON="" DRY_RUN=""
for argument in "$@"; do
    case "$argument" in
    --json) JSON=1 ;;
    --dry-run) DRY_RUN=1 ;;
    *) die "unknown argument: $argument" "bash scripts/matrix.sh [--json] [--dry-run]" ;;
    esac
done
WORK="$(mktemp -d)"
trap 'rm -rf "$WORK"' EXIT
ROWS=() FAILED=0 TESTED=0

# note PYTHON TORCH RESULT DETAIL: one row of the table.
note() {
    printf '%-6s torch %-12s %-9s %s\n' "$1" "$2" "$3" "$4"
    ROWS+=("$(python3 -c 'import json, sys; print(json.dumps(dict(zip(("python", "torch", "result", "detail"), sys.argv[1:]))))' "$@")")
}

# wheel PYTHON TORCH: the version of torch that pip would take, or nothing. The metadata alone are fetched.
wheel() {
    "$1" -m pip --disable-pip-version-check install --quiet --dry-run --ignore-installed --no-deps --report - \
        "torch==$2.*" 2>/dev/null |
        "$1" -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])' 2>/dev/null || true
}

# test_pair PYTHON TORCH: in an environment of its own; what pip or pytest said last is the detail.
test_pair() {
    local venv="$WORK/venv" log="$WORK/log" result=passed
    rm -rf "$venv"
    if ! { "$1" -m venv "$venv" && (cd "$ROOT" && "$venv/bin/python" -m pip --disable-pip-version-check install \
        --quiet --progress-bar off -e ".[test]" "torch==$2"); } >"$log" 2>&1; then
        note "${1##*python}" "$2" "not had" "pip: $(tail -n 1 "$log")"
        return
    fi
    TESTED=$((TESTED + 1))
    if ! (cd "$ROOT" && OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -q "${SUITES[@]}") >"$log" 2>&1; then
        result=failed FAILED=$((FAILED + 1))
    fi
    note "${1##*python}" "$2" "$result" "$(tail -n 1 "$log")"
}

# interpreter VERSION: the first of that name on the PATH that runs and can make an environment.
interpreter() {
    local candidate
    for candidate in $(type -ap "python$1"); do
        if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

for version in "${PYTHONS[@]}"; do
    if ! python="$(interpreter "$version")"; then
        note "$version" any "not had" "no python$version on the PATH that has venv"
        continue
    fi
    for torch in "${TORCHES[@]}"; do
        found="$(wheel "$python" "$torch")"
        if [ -z "$found" ]; then
            note "$version" "$torch" "not had" "pip's index has no wheel of it for this Python and machine"
        elif [[ "$found" != *+cpu && "$(uname -m)" = x86_64 && "$(df -Pk "$WORK" | awk 'NR == 2 { print int($4 / 1024) }')" -lt 9000 ]]; then
            note "$version" "$found" "not had" "its wheel brings CUDA libraries, and less than 9 GB of disk are free"
        elif [ -n "$DRY_RUN" ]; then
            TESTED=$((TESTED + 1))
            note "$version" "$found" "can be had" "not tested (--dry-run)"
        else
            test_pair "$python" "$found"
        fi
    done
done
HOLDS=$([ "$FAILED" -eq 0 ] && [ "$TESTED" -gt 0 ] && echo true || echo false)
[ -z "$JSON" ] || printf '{"rows": [%s], "holds": %s}\n' "$(IFS=,; echo "${ROWS[*]}")" "$HOLDS"
[ "$HOLDS" = true ]
