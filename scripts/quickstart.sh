#!/usr/bin/env bash
# From a bare clone to a real model compiled for Trainium and run in the simulator.
# Makes or reuses .venv, installs the demo extra, runs `trnx demo`; arguments go to `trnx demo`.
set -euo pipefail
# shellcheck source=scripts/_env.sh
source "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

make_venv
install_trnx demo
step "running trnx demo $*"
exec "$VENV/bin/trnx" demo "$@"
