# Shared by quickstart.sh and test.sh: finds Python, makes .venv, installs an extra of trnx once.
# Sourced, never run. Every failure ends with one readable message and a non-zero status.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"

step() { printf '\n==> %s\n' "$*"; }
die() {
    printf '\nerror: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 1
}

# The first interpreter of 3.11-3.14: $PYTHON, the machine's python3, then each version by name.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
            >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

need_disk() {
    local have
    have="$(df -Pk "$ROOT" | awk 'NR == 2 { print int($4 / 1024) }')"
    [ "$have" -ge "$1" ] || die "only $have MB free on the disk of $ROOT; $1 MB are needed" \
        "Free some space, or clone the repository onto a larger disk."
}

make_venv() {
    if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c '' 2>/dev/null; then
        step "reusing .venv ($("$VENV/bin/python" -V))"
        return
    fi
    local python
    python="$(find_python)" || die "no Python 3.11, 3.12, 3.13 or 3.14 found" \
        "Install one (Debian, Ubuntu: apt install python3 python3-venv)," \
        "or name it: PYTHON=/path/to/python3.12 bash scripts/quickstart.sh"
    need_disk 4000
    step "making .venv with $("$python" -V) ($python)"
    rm -rf "$VENV"
    "$python" -m venv "$VENV" || die "$python could not make a virtual environment" \
        "On Debian and Ubuntu: apt install python3-venv"
}

pip_install() {
    set +e # the status of pip, not of the filters behind it, decides
    "$VENV/bin/python" -m pip --disable-pip-version-check install --progress-bar off \
        -c "$ROOT/constraints.txt" "$@" 2>&1 |
        grep --line-buffered -v -E '^(Requirement already|WARNING: Location|Looking in)' |
        sed -u 's/^/    /'
    local status="${PIPESTATUS[0]}"
    set -e
    [ "$status" -eq 0 ] || die "pip could not install: $*" \
        "Without a network, put the wheels into a folder and say: PIP_FIND_LINKS=folder PIP_NO_INDEX=1" \
        "Behind a mirror, set PIP_INDEX_URL. The lines above say what pip met."
}

# Says what pip is about to take for torch: its wheels for the CPU are small, those with CUDA are not.
announce_torch() {
    "$VENV/bin/python" -c 'import torch' 2>/dev/null && return
    local version
    version="$("$VENV/bin/python" -m pip --disable-pip-version-check install --quiet --dry-run \
        --no-deps --report - -c "$ROOT/constraints.txt" torch 2>/dev/null |
        "$VENV/bin/python" -c 'import json, sys
print(json.load(sys.stdin)["install"][0]["metadata"]["version"])' 2>/dev/null)" ||
        die "pip finds no torch to install" \
            "Without a network, put the wheels into a folder and say: PIP_FIND_LINKS=folder PIP_NO_INDEX=1"
    case "$version" in
    *+cpu) echo "    torch $version: a wheel for the CPU" ;;
    *)
        echo "    torch $version: the default wheel. On Linux x86_64 it brings CUDA libraries, 3 GB or more."
        echo "    To take the wheel for the CPU (200 MB): put PyTorch's CPU wheel index, which its"
        echo "    installation page names, into PIP_EXTRA_INDEX_URL, or a folder with the wheel into"
        echo "    PIP_FIND_LINKS; remove .venv and start again."
        need_disk 9000
        ;;
    esac
}

# install_trnx EXTRA: once per state of pyproject.toml and constraints.txt.
install_trnx() {
    local stamp="$VENV/.trnx-$1" state
    state="$(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | sha256sum)"
    if [ "$(cat "$stamp" 2>/dev/null)" = "$state" ]; then
        step "trnx[$1] is installed already"
        return
    fi
    step "installing trnx[$1] with the versions of constraints.txt"
    pip_install setuptools wheel
    announce_torch
    pip_install torch
    pip_install --no-build-isolation -e "$ROOT[$1]"
    printf '%s\n' "$state" >"$stamp"
}
