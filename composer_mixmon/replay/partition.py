"""How an epoch's samples are dealt to nodes and ranks, as arithmetic instead of a five-dimensional array.

``get_partitions_orig`` of streaming lays the samples out as a matrix (canonical nodes, columns), reads it
column by column, drops what was seen, and deals the rest in turn to the physical nodes and their ranks. So
every global batch is a contiguous range of that reading: its *cells*. Cell j of the epoch maps to a position
in the shuffled order by a few integer operations; only the last columns, where rows are padded, are special.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from composer_mixmon.errors import ConfigError
from composer_mixmon.replay.sampling import Ints
from composer_mixmon.replay.spans import node_edges

__all__ = ["Partition"]


@dataclass(frozen=True)
class Partition:
    """One deal of ``samples`` (shuffled) samples.

    Attributes:
        samples: Samples to deal, N.
        canonical: Canonical nodes, C.
        nodes: Physical nodes, P.
        ranks: Ranks of each node, R.
        drop: Samples seen before, left out from the front.

    Raises:
        ConfigError: Neither of C and P divides the other, or the samples are too few to pad.
    """

    samples: int
    canonical: int
    nodes: int
    ranks: int
    drop: int = 0

    def __post_init__(self) -> None:
        small, large = sorted((self.canonical, self.nodes))
        if large % small:
            mend = f"it must divide the {self.nodes} physical nodes or be divisible by them"
            raise ConfigError("num_canonical_nodes", self.canonical, mend)
        object.__setattr__(self, "drop", self.drop - self.drop % self.nodes)
        source = self._padding_source
        if self._padding and len(source) not in (1, self._padding):
            mend = f"{self.samples} samples are too few to pad for {self.nodes} nodes: use fewer nodes"
            raise ConfigError("num_canonical_nodes", self.canonical, mend)

    @cached_property
    def _repeats(self) -> bool:
        """Whether there are so few samples that the matrix is filled by repeating all of them."""
        enough = self.samples > self.canonical
        return not (enough or (self.samples == self.canonical and self.canonical >= self.nodes))

    @cached_property
    def _per_node(self) -> int:
        return -(-self.samples // self.canonical)

    @cached_property
    def _padding(self) -> int:
        return -self._per_node % self._node_ratio

    @cached_property
    def _node_ratio(self) -> int:
        return max(1, self.nodes // self.canonical)

    @cached_property
    def _columns(self) -> int:
        return self._per_node + self._padding

    @cached_property
    def _padding_source(self) -> range:
        """Columns whose samples are repeated in the padding columns."""
        if self._repeats or not self._padding:
            return range(1)
        stop = -self._padding - self._node_ratio + 1
        return range(self._columns)[stop - self._padding : stop]

    @cached_property
    def rows(self) -> Ints:
        """First position of each canonical node and, last, the samples: int64 (C + 1,)."""
        return node_edges(self.samples, self.canonical)

    @cached_property
    def _per_physical(self) -> int:
        """Cells of each physical node before ranks are evened out."""
        return max(0, self._columns * self.canonical - self.drop) // self.nodes

    @cached_property
    def per_rank(self) -> int:
        """Samples that every rank gets."""
        return -(-self._per_physical // self.ranks)

    @cached_property
    def cells(self) -> int:
        """Samples of all ranks, repeats included."""
        return self.per_rank * self.ranks * self.nodes

    @cached_property
    def regular_columns(self) -> int:
        """Columns from the left in which cell and position follow the plain rule, untouched by padding."""
        if self._repeats:
            return 0
        rank_padding = -(-2 * self.ranks * self.nodes // self.canonical)
        return max(0, self._columns - rank_padding - 2 * self._padding - self._node_ratio - 3)

    def tail_cells(self) -> Ints:
        """All cells outside the regular columns."""
        return np.arange(max(0, self.regular_columns * self.canonical - self.drop), self.cells)

    def positions(self, cells: Ints) -> Ints:
        """Map cells to positions in the shuffled order; −1 behind the last cell.

        Args:
            cells: int64, not negative, of any shape.
        """
        turn, node = np.divmod(cells, self.nodes)
        in_epoch = turn < self.per_rank * self.ranks
        turn = np.where(turn < self._per_physical, turn, self._rank_padding(turn))
        column, row = np.divmod(self.drop + turn * self.nodes + node, self.canonical)
        return np.where(in_epoch, self._matrix(row, column), -1)

    def _rank_padding(self, turn: Ints) -> Ints:
        """Turns that repeat earlier samples so that all ranks get equally many."""
        have, need = self._per_physical, self.per_rank * self.ranks - self._per_physical
        if not need:
            return np.zeros_like(turn)
        if self.ranks + need - 1 <= have:
            return np.minimum(turn, have + need) - self.ranks - need + 1
        return (turn - have) % have

    def _matrix(self, row: Ints, column: Ints) -> Ints:
        if self._repeats:
            return (row * self._columns + column) % self.samples
        padded = column >= self._per_node
        if self._padding:
            source = np.resize(np.array(self._padding_source), self._padding)
            column = np.where(padded, source[np.where(padded, column - self._per_node, 0)], column)
        short = np.diff(self.rows) < self._per_node
        return self.rows[row] + column - ((column == self._per_node - 1) & short[row])
