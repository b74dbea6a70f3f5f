#!/usr/bin/env bash
# The demo, from nothing to its chart: a run fed language by language that mixmon stops, the same run to its
# end, and a well-shuffled one. Takes about six minutes of CPU time after installing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/env.sh

# One thread: the model is so small that more of them mostly wait for each other.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false WANDB_SILENT="${WANDB_SILENT:-true}"
out=runs/demo

step() {
    printf '\n==> %s\n' "$*"
}

# A killed run leaves StreamingDataset's shared memory behind, and the next one on the same data refuses to
# start. It is cleaned only if no live process has any mapped.
if compgen -G '/dev/shm/[0-9][0-9][0-9][0-9][0-9][0-9]_locals' >/dev/null &&
    ! grep -qs '/dev/shm/[0-9]\{6\}_' /proc/[0-9]*/maps; then
    python -c 'from streaming.base.util import clean_stale_shared_memory as clean; clean()'
fi

step "Corpus: English shards, then Japanese ones"
python scripts/demo_data.py "$out/data"

step "Ordered: whole shards in random order; the alarm stops the run"
python scripts/pretrain.py yamls/demo-ordered.yaml

step "Ordered, again, with an alarm that only logs: what would have come"
python scripts/pretrain.py yamls/demo-ordered.yaml run_name=demo-ordered-full 'callbacks.mixmon.alarm.action=[log]'

step "Shuffled: the same data, model and steps"
python scripts/pretrain.py yamls/demo-shuffled.yaml

step "Report"
python scripts/demo_report.py "$out"
