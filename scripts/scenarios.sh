#!/usr/bin/env bash
# Runs that went wrong, each for a known reason, and what `mixmon postmortem` says of them, from nothing:
# environment, data, training, verdicts. Arguments go to scenarios.py: scripts/scenarios.sh --only see-saw
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/env.sh

# One thread, so that the runs are the same every time.
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
export WANDB_MODE=offline WANDB_SILENT="${WANDB_SILENT:-true}"

python scripts/demo_data.py runs/scenarios/data --shards 64
python scripts/scenarios.py runs/scenarios "$@"
