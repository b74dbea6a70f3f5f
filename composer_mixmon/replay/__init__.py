"""Replay: what a StreamingDataset feeds, from its settings and index.json files alone.

::

    index.json ──► index ──► settings ──► order.Replay ──► ids, label counts of each global batch
                                              │
        sampling, units    which samples of each stream and shard an epoch holds
        spans, shuffles    their shuffled order, over ids or labels (py1e, permute, ahead: the fast parts)
        partition          how nodes and ranks share it
        schedule           which of them make up each batch, for the four batching methods
        tally              from pieces of the order to counts of batches
    samplers: torch's and numpy's permutations, for data that is not streamed
"""

from composer_mixmon.replay.index import StreamIndex, parse_index, read_index
from composer_mixmon.replay.order import Counted, Replay
from composer_mixmon.replay.sampling import StreamWeight
from composer_mixmon.replay.settings import Settings
from composer_mixmon.replay.units import LabelRanges
from composer_mixmon.replay.world import World

__all__ = [
    "Counted",
    "LabelRanges",
    "Replay",
    "Settings",
    "StreamIndex",
    "StreamWeight",
    "World",
    "parse_index",
    "read_index",
]
