#!/usr/bin/env bash
# Check a Trainium job on EKS before it costs anything: render its manifests, then validate them.
# Usage: bash examples/submit_a_job.sh [FOLDER]      (needs the extra `eks`; no cluster)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-manifests}
mkdir -p "$folder"

trnx eks render "$here/job.yaml" > "$folder/job.yaml"
trnx eks validate "$folder/job.yaml"

echo "next: trnx eks doctor $here/job.yaml && trnx eks submit $here/job.yaml"
