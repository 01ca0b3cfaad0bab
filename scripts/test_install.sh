#!/usr/bin/env bash
# A plain install, not editable, works: each Dockerfile of scripts/eks/containers is followed, without docker, into
# a fresh virtual environment, and trnx is used there from outside of the checkout (scripts/install/checks.py).
set -euo pipefail
# shellcheck source=scripts/_env.sh
source "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

make_venv
install_trnx test
WORK="$(mktemp -d)"
trap 'rm -rf "$WORK"' EXIT
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 XDG_CACHE_HOME="$WORK/cache"
unset PYTHONPATH
for image in cpu neuron; do
    step "installing as Dockerfile.$image says"
    "$VENV/bin/python" "$ROOT/scripts/install/recipe.py" \
        "$ROOT/scripts/eks/containers/Dockerfile.$image" "$WORK/$image"
done
cp -r "$ROOT/scripts/install/checks.py" "$ROOT/docs/adding_a_kernel.md" "$ROOT/scripts/eks/examples" "$WORK"
cd "$WORK"
mkdir rendered
for job in examples/*.yaml; do "$VENV/bin/trnx" eks render "$job" >"rendered/${job#examples/}"; done
step "using what was installed"
# The whole of it once; with the other image's extras, that all is there and its command runs.
check() {
    IMAGE="$1" "$1/venv/bin/python" -m pytest -c /dev/null --rootdir . -q -p no:cacheprovider -n 2 checks.py "${@:2}"
}
check cpu
check neuron -k "place or image or generated"
step "the installed package works"
