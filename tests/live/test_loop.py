"""The same books in a training loop of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from composer_mixmon.errors import ConfigError, DatasetError
from composer_mixmon.loop import tap
from composer_mixmon.mixture import Mixture
from tests.live.data import Listed, as_dict, ids_of, mds_loader, two_streams
from tests.live.packing import Ahead, Packer, Texts, held
from tests.live.test_packed import identity


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bare_loop_over_streams(tmp_path: Path, workers: int) -> None:
    """Counts, window and metrics of each batch are those of the ids in the batch itself."""
    loader = mds_loader(two_streams(tmp_path, 6, shuffle=True), num_workers=workers)
    tapped = tap(loader, labels="stream")
    assert tapped.names == ("a", "b")
    assert tapped.target.tolist() == [40 / 64, 24 / 64]
    mixture, seen = Mixture(tapped.target, window=4), []
    for batch in loader:
        known = tapped.take(batch)
        ids = ids_of(batch)
        assert known.ids.tolist() == ids
        seen.append([sum(i < 40 for i in ids), sum(i >= 40 for i in ids)])
        fold = mixture.update(known.counts)
        recent = np.sum(seen[-4:], axis=0)
        metrics = mixture.metrics(fold, tapped.names)
        assert metrics["mixmon/window/ratio/a"] == recent[0] / recent.sum()
        assert metrics["mixmon/run/ratio/b"] == np.sum(seen, axis=0)[1] / np.sum(seen)
    tapped.detach()
    assert "__getitem__" not in vars(loader.dataset)
    assert "_get_iterator" not in vars(loader)
    assert next(iter(loader)).keys() == batch.keys()


def test_several_batches_at_once() -> None:
    """Batches recorded together are those recorded one by one."""
    rows = np.random.default_rng(1).integers(0, 9, (30, 3))
    one, many = (Mixture(np.full(3, 1 / 3), 7) for _ in range(2))
    for row in rows:
        last = one.update(row)
    together = many.update(rows)
    assert one.metrics(last, ("a", "b", "c")) == many.metrics(together, ("a", "b", "c"))


def test_a_packer() -> None:
    """Packed batches are taken by the batch itself."""
    packed = Ahead(Packer(DataLoader(Texts(160), batch_size=7, collate_fn=identity)))
    tapped = tap(packed, labels={"position": 160})
    for batch in packed:
        assert sorted(tapped.take(batch).ids.tolist()) == sorted(sample for sample, _ in held(batch))
    tapped.detach()


def test_asking_twice_and_wrong_settings() -> None:
    """A batch is known once; settings that do not fit are refused at once."""
    loader: Any = DataLoader(Listed(12), batch_size=4, collate_fn=as_dict)
    tapped = tap(loader, labels={"position": 3})
    batch = next(iter(loader))
    assert tapped.take(batch).counts.tolist() == [4, 0, 0]
    with pytest.raises(DatasetError, match="once for each batch"):
        tapped.take(batch)
    with pytest.raises(ConfigError, match=r"labels\.position"):
        tap(loader, labels={"position": 1})
    with pytest.raises(DatasetError, match="torch DataLoader"):
        tap([torch.zeros(1)])
