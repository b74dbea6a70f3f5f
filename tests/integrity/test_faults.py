"""Each kind of fault is found, counted and named."""

from __future__ import annotations

import numpy as np
import pytest

from composer_mixmon.integrity.books import Books, Sampled
from composer_mixmon.integrity.numbers import Numbers
from composer_mixmon.integrity.plan import rank_batches
from composer_mixmon.integrity.spots import Spots, allowed, pack, unpack
from composer_mixmon.replay import Settings, World
from tests.integrity.runs import Run, fed

WORLD = World(1, 4, 2)
NOTHING = {"repeats": 0, "gaps": 0, "rank_overlap": 0, "plan_mismatch": 0}


def settings(samples=640, **others):
    defaults = {"batch_size": 4, "shuffle": True, "shuffle_algo": "py1e", "num_canonical_nodes": 2}
    return Settings.resolve(WORLD, [[40] * (samples // 40)], **defaults | others)


def run(**others):
    made = Run(settings(**others))
    made.start(WORLD)
    return made


def rules(found):
    return [finding.rule.removeprefix("integrity: ") for finding in found]


def test_another_order_on_one_rank():
    """The first mismatch names rank, batch, planned and seen ids; each mismatch counts."""
    tampered = run()

    def swap(ranks):
        ranks[2][5] = ranks[2][5][::-1]
        ranks[2][9] = ranks[2][9][::-1]
        return ranks

    tampered.train(0, tamper=swap)
    planned = fed(settings(), WORLD, 0, 0)[2][5]
    assert tampered.metrics == NOTHING | {"plan_mismatch": 2}
    (finding,) = tampered.found
    texts = [", ".join(map(str, ids)) for ids in (planned[::-1], planned)]
    assert str(finding) == (
        f"integrity: plan mismatch: rank 2 in batch 5 was fed the samples {texts[0]}, … where "
        f"{texts[1]}, … were planned, by batch {finding.batch}"
    )
    assert finding.batch == 5


def test_ranks_that_begin_at_different_places():
    """A rank whose own plan is kept but is not rank 0's is told on, by name."""
    odd = run()
    ours = odd.watches[1]._begin
    from dataclasses import replace

    odd.watches[1]._begin = lambda: replace(ours(), setup=8)
    odd.train(0)
    assert rules(odd.found) == ["plan mismatch"]
    assert "rank 1 in batch 0" in str(odd.found[0])
    assert odd.metrics["plan_mismatch"] == odd.batch - odd.interval


@pytest.mark.parametrize("samples", [640, 20_000])
def test_resumed_too_early(samples):
    """A pass that begins before what has been done repeats the samples between, to the sample."""
    twice = run(samples=samples)
    twice.train(0, stop=20)
    twice.start(WORLD)
    twice.train(0, first=5 * 16)
    assert twice.metrics["repeats"] == 15 * 16
    assert twice.metrics["plan_mismatch"] == twice.metrics["gaps"] == 0
    assert rules(twice.found) == ["repeats"]


def test_resumed_too_late():
    """A pass that leaves samples out makes a gap, told at once."""
    short = run()
    short.train(0, stop=20)
    short.start(WORLD)
    short.train(0, first=25 * 16)
    assert short.metrics == NOTHING | {"gaps": 5 * 16}
    assert rules(short.found) == ["gaps"]
    assert short.found[0].batch == 22


def test_an_epoch_that_ends_too_early():
    """Samples that were not reached are told at the epoch's end, unless training meant to end there."""
    for whole, gaps in ((True, 20 * 16), (False, 0)):
        cut = run()
        cut.train(0, stop=20)
        cut.end(whole)
        assert cut.metrics == NOTHING | {"gaps": gaps}
        assert rules(cut.found) == ["gaps"] * whole


def test_resumed_with_another_seed():
    """The rest of another permutation repeats some samples and leaves others out."""
    other = run(samples=20_000)
    other.train(0, stop=600)
    other.settings = settings(samples=20_000, shuffle_seed=1)
    other.start(WORLD)
    other.train(0)
    expected = 600 * 16 * 0.52  # done before, and coming again in the other half
    assert other.metrics["repeats"] == pytest.approx(expected, rel=0.2)
    assert other.metrics["gaps"] > 0
    assert {"repeats", "gaps"} == set(rules(other.found))


def test_two_ranks_with_the_same_batches():
    """Equal sets of ids in an interval are an overlap, at once."""
    twins = run(samples=20_000)
    twins.interval = 4
    twins.train(0, stop=4, tamper=lambda ranks: [ranks[0], ranks[0][:4][::-1], ranks[2], ranks[3]])
    assert twins.metrics["rank_overlap"] == 4 * 4
    assert "rank overlap" in rules(twins.found)


@pytest.mark.parametrize(("samples", "overlap"), [(640, 20), (20_000, 16)])
def test_two_ranks_with_the_same_batches_in_a_short_interval(samples, overlap):
    """Too few samples to be called equal sets count by their spots, where each sample is one: exactly."""
    twins = run(samples=samples)
    twins.interval = 4
    twins.train(0, stop=5, tamper=lambda ranks: [ranks[0], ranks[0], ranks[2], ranks[3]])
    twins.settle()
    assert twins.metrics["rank_overlap"] == overlap


def test_ranks_with_the_same_data_in_other_orders():
    """Overlap of what comes at different times on different ranks is seen by the spots."""
    apart = run()
    apart.train(0, tamper=lambda ranks: [ranks[0], ranks[0][20:] + ranks[0][:20], ranks[2], ranks[3]])
    assert apart.metrics["rank_overlap"] == 160
    assert apart.metrics["repeats"] == 0
    assert "rank overlap" in rules(apart.found)


def test_a_batch_that_comes_again():
    """Repeats within one rank are repeats, not an overlap; samples that gave way are gaps."""
    again = run()

    def repeat(ranks):
        ranks[1][30] = ranks[1][3]
        return ranks

    again.train(0, tamper=repeat)
    assert again.metrics == {"repeats": 4, "gaps": 4, "rank_overlap": 0, "plan_mismatch": 1}


def test_the_same_order_twice():
    """Two epochs of one order, where the data is shuffled."""
    for shuffled, found in ((True, ["same order"]), (False, [])):
        stuck = run()
        for watch in stuck.watches:
            watch.books._shuffled = shuffled
        stuck.train(0)
        same = fed(stuck.settings, WORLD, 0, 0)
        stuck.train(1, tamper=lambda _ranks, same=same: same)
        assert [rule for rule in rules(stuck.found) if rule != "plan mismatch"] == found


@pytest.mark.parametrize("repeats", [200, 2_000])
def test_power_of_the_spots(repeats):
    """The chance that repeats touch no spot is (1 − s/N)**r, within the error of 400 trials."""
    rng, samples, spots = np.random.default_rng(repeats), 100_000, Spots(100_000)
    missed = np.mean([len(spots.pick(rng.choice(samples, repeats, False))) == 0 for _ in range(400)])
    expected = (1 - len(spots) / samples) ** repeats
    assert abs(missed - expected) < 4 * np.sqrt(expected * (1 - expected) / 400) + 1e-3


@pytest.mark.parametrize("samples", [1, 5, 1023, 1024, 1025, 99_999])
def test_spots_are_every_so_manieth_id(samples):
    """At most 1,024, each found by its own number."""
    spots = Spots(samples)
    assert 1 <= len(spots) <= 1024
    np.testing.assert_array_equal(spots.pick(np.arange(samples)), np.arange(len(spots)))
    assert [i for i in range(samples) if len(spots.pick(np.array([i])))] == list(spots.ids)


def test_packed_counts_add_up():
    """The sum of packed counts is the packed sum; what might not fit is refused."""
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 65535 // 8 + 1, (8, 1000))
    packed = sum(pack(row, 8) for row in counts)
    np.testing.assert_array_equal(unpack(packed, 1000), counts.sum(axis=0))
    assert pack(np.array([65535 // 8 + 1]), 8) is None


def test_allowed_by_streams():
    """Whole repeats of a stream, and one more where a part of it is drawn."""
    spots = Spots(100)
    low, high = allowed(spots, np.array([40, 60]), np.array([100, 60]))
    assert low.tolist() == [2] * 40 + [1] * 60
    assert high.tolist() == [3] * 40 + [1] * 60


@pytest.mark.parametrize("ranks", [1, 63, 200])
def test_suspects_survive_the_sum(ranks):
    """Which ranks have a mismatch is read off the sum."""
    from composer_mixmon.integrity.numbers import Detail

    wanted = sorted({0, ranks // 2, ranks - 1})
    total = Numbers(ranks)
    for rank in wanted:
        one = Numbers(ranks)
        one.suspect(Detail(rank, 5, [1, 2], [3]))
        total.values += one.values
    assert total.suspects == wanted
    assert (total.detail is None) == (len(wanted) > 1)


def test_rank_batches_of_uneven_workers():
    """Workers take turns until they have no more: rows 1 and 3 are missing, and so worker 1's turns."""
    assert rank_batches(np.array([9, 0, 9, 0, 9, 9]), 2).tolist() == [0, 5, 2, 4]


def test_books_of_another_dataset():
    """The sums go on, the epoch does not."""
    sampled = Sampled(1, np.ones(8, np.int64), np.ones(8, np.int64), 1, True)
    one, other = Books("a", sampled, True), Books("b", sampled, True)
    state = one.state_dict()
    state["sums"]["gaps"], state["epoch"]["position"] = 5, 4
    other.load_state_dict(state)
    assert other.metrics["gaps"] == 5
    assert other.state_dict()["epoch"]["position"] == 0
