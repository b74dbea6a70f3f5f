"""What all tests share."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two cores, and workers beside the main process
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # DataLoader workers are forked after its use
