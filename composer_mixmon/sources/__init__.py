"""What is left of a run, read into a :class:`~composer_mixmon.run_record.RunRecord`.

::

    RUN ─► read ─┬─► composer_mixmon.ledger
                 ├─► wandb_folder (wandb_file) ─┐
                 ├─► wandb_api ─────────────────┤
                 ├─► csv_file ──────────────────┼─► logged ─► from_logged ─► RunRecord
                 └─► tensorboard ───────────────┘
    TRAIN.yaml, or the settings logged ─► replayed ─► legs, order (hashing) ─► counts, order hashes, shards
    CHECKPOINT ─► checkpoint (inert: nothing in it is run)          given   what the command line says
"""

from composer_mixmon.sources.checkpoint import Checkpoint, read_checkpoint
from composer_mixmon.sources.given import Given
from composer_mixmon.sources.order import RunOrder, ShardHeat
from composer_mixmon.sources.read import read_run
from composer_mixmon.sources.replayed import read_order

__all__ = ["Checkpoint", "Given", "RunOrder", "ShardHeat", "read_checkpoint", "read_order", "read_run"]
