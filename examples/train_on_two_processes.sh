#!/usr/bin/env bash
# Train a small Llama on two processes with FSDP2, stop, and go on from the checkpoint.
# Usage: bash examples/train_on_two_processes.sh [FOLDER]      (needs the extra `jobs`)
set -euo pipefail

folder=${1:-training}
mkdir -p "$folder/text"
python - "$folder/text/numbers.txt" <<'PY'
import sys

with open(sys.argv[1], "w") as file:
    file.writelines(f"{n} times {m} is {n * m}.\n" for n in range(60) for m in range(60))
PY

train() {
  torchrun --standalone --nproc-per-node 2 -m trnx.jobs.train --data "$folder/text" \
    --sequence-length 32 --batch 4 --parallel fsdp --checkpoint-dir "$folder/checkpoints" \
    --checkpoint-every 2 "$@"
}

train --steps 2
train --steps 4   # resumes after step 2
