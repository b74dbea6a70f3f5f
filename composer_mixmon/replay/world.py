"""The processes that share a dataset."""

from __future__ import annotations

from dataclasses import dataclass

from composer_mixmon.errors import ConfigError

__all__ = ["World", "check_whole"]


def check_whole(name: str, value: object, least: int) -> None:
    """Raise ConfigError unless ``value`` is a whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(name, value, f"write a whole number of at least {least}")


@dataclass(frozen=True)
class World:
    """The processes that share the dataset.

    Attributes:
        nodes: Physical nodes.
        ranks_per_node: GPUs of each.
        workers_per_rank: ``num_workers`` of the DataLoader; 0 counts as 1, as it does in streaming.

    Raises:
        ConfigError: A count that is not a whole number, or too small.
    """

    nodes: int = 1
    ranks_per_node: int = 1
    workers_per_rank: int = 1

    def __post_init__(self) -> None:
        for name, least in (("nodes", 1), ("ranks_per_node", 1), ("workers_per_rank", 0)):
            check_whole(f"world.{name}", getattr(self, name), least)
        object.__setattr__(self, "workers_per_rank", max(1, self.workers_per_rank))

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks_per_node

    def replicate(self, replication: int | None) -> World:
        """Return the world as the dataset sees it where each sample goes to several consecutive ranks.

        Where the remaining ranks do not fill whole nodes, streaming counts them as one node.

        Raises:
            ConfigError: The ranks cannot be divided by ``replication``.
        """
        if replication is None:
            return self
        if self.ranks % replication:
            raise ConfigError("replication", replication, f"{self.ranks} ranks must be divisible by it")
        ranks = self.ranks // replication
        nodes = ranks // self.ranks_per_node if ranks % self.ranks_per_node == 0 else 1
        return World(nodes, ranks // nodes, self.workers_per_rank)
