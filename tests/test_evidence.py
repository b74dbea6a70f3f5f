"""E-values against 50 digits and enumeration; the e-detector against its definition and by simulation."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import re
from pathlib import Path

import mpmath
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.e_value import Null
from composer_mixmon.errors import ConfigError
from composer_mixmon.evidence import Evidence, EvidenceSettings, batching_effects, log_e_value

HUGE = 2**53
EVEN = np.array([0.5, 0.5])
CONCENTRATIONS = (10, 100, 1000, 10_000)


def exact_mixture(counts, low, high):
    """The likeliest mixture within bounds on the counted labels, by bisection in 50 digits."""
    low, high = [mpmath.mpf(float(v)) for v in low], [mpmath.mpf(float(v)) for v in high]

    def clipped(scale):
        return [min(max(scale * int(c), a), b) for c, a, b in zip(counts, low, high, strict=True)]

    begin, end = mpmath.mpf(0), max(b / int(c) for c, b in zip(counts, high, strict=True) if c > 0)
    for _ in range(180):
        middle = (begin + end) / 2
        begin, end = (middle, end) if sum(clipped(middle)) < 1 else (begin, middle)
    return clipped(end)


def exact_log_e(counts, target, tolerance):
    """The definition of the e-value, word by word, in 50 digits."""
    with mpmath.workdps(50):
        total = int(sum(counts))
        p = [mpmath.mpf(float(share)) for share in target]
        prior = [max(share, mpmath.mpf(1e-3 / len(p))) for share in p]
        prior_sum, target_sum = sum(prior), sum(p)
        prior = [share / prior_sum for share in prior]
        numerator = mpmath.mpf(0)
        for kappa in CONCENTRATIONS:
            log = -mpmath.log(mpmath.rf(kappa, total))
            log += sum(
                mpmath.log(mpmath.rf(kappa * a, int(c))) for c, a in zip(counts, prior, strict=True) if c
            )
            numerator += mpmath.exp(log) / len(CONCENTRATIONS)
        if tolerance:
            tolerance = mpmath.mpf(tolerance)
            q = exact_mixture(counts, [max(s - tolerance, 0) for s in p], [min(s + tolerance, 1) for s in p])
        else:
            q = [share / target_sum if share else mpmath.mpf(1e-12) for share in p]
        denominator = sum(int(c) * mpmath.log(s) for c, s in zip(counts, q, strict=True) if c > 0)
        return float(mpmath.log(numerator) - denominator)


def drawn(samples, shares, seed=0):
    return np.random.default_rng(seed).multinomial(samples, shares)


def dirichlet(labels, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(labels, 5.0))


GOLDEN = {
    "even, as meant": ([128, 128], [0.5, 0.5], 0),
    "even, one off": ([129, 127], [0.5, 0.5], 0),
    "even, 0.6": ([154, 102], [0.5, 0.5], 0),
    "even, one label only": ([256, 0], [0.5, 0.5], 0),
    "one sample": ([1, 0], [0.5, 0.5], 0),
    "rare label": ([250, 6], [0.99, 0.01], 0),
    "rare label, tolerated": ([250, 6], [0.99, 0.01], 0.05),
    "rare label, beyond tolerance": ([200, 56], [0.99, 0.01], 0.05),
    "three labels, two at bounds": ([10, 60, 130], [0.3, 0.3, 0.4], 0.1),
    "three labels, one free": ([30, 20, 150], [1 / 3, 1 / 3, 1 / 3], 0.05),
    "counted labels at their upper bound": ([50, 50, 0], [0.2, 0.2, 0.6], 0.1),
    "label of no target, no tolerance": ([200, 50, 6], [0.8, 0.2, 0.0], 0),
    "label of no target, tolerance": ([200, 50, 6], [0.8, 0.2, 0.0], 0.01),
    "only a label of no target": ([0, 7], [1.0, 0.0], 0),
    "a sure label": ([300, 0], [1.0, 0.0], 0.05),
    "a sure label missing": ([0, 300], [1.0, 0.0], 0.05),
    "one label": ([300], [1.0], 0),
    "large tolerance": ([250, 6], [0.5, 0.5], 0.4),
    "ten labels, tolerance 0": (drawn(2000, dirichlet(10, 1)), dirichlet(10), 0),
    "ten labels, tolerance 0.02": (drawn(2000, dirichlet(10, 1)), dirichlet(10), 0.02),
    "ten labels, two million": (drawn(2_000_000, dirichlet(10)), dirichlet(10), 0),
    "a hundred labels": (drawn(4096, dirichlet(100, 1)), dirichlet(100), 0.002),
    "a thousand labels": (drawn(4096, dirichlet(1000, 1)), dirichlet(1000), 0.0),
    "three hundred labels, tolerance": (drawn(4096, dirichlet(300, 1)), dirichlet(300), 0.001),
    "ten thousand labels": (drawn(2000, dirichlet(10_000, 1)), dirichlet(10_000), 0),
    "2**53 samples, a bias of 2**-22": ([2**52 + 2**31, 2**52 - 2**31], [0.5, 0.5], 0),
    "2**53 samples, tolerated": ([2**52 + 2**31, 2**52 - 2**31], [0.5, 0.5], 0.01),
    "2**53 samples, beyond tolerance": ([2**52 + 2**50, 2**52 - 2**50], [0.5, 0.5], 0.0625),
    "2**53 samples of one label": ([2**53, 0], [0.5, 0.5], 0),
}


@pytest.mark.parametrize("case", GOLDEN.values(), ids=GOLDEN)
def test_e_values_are_exact(case):
    """29 values within 1e-12 of the definition evaluated in 50 digits."""
    assert log_e_value(*case) == pytest.approx(exact_log_e(*case), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("seed", range(25))
def test_the_denominator_is_the_largest_likelihood(seed):
    """The log-likelihood is concave, so a maximum is where no step climbs: linprog finds none."""
    rng = np.random.default_rng(seed)
    labels = int(rng.integers(2, 8))
    target, tolerance = rng.dirichlet(np.ones(labels)), rng.choice([0.01, 0.05, 0.3])
    counts = rng.multinomial(100, rng.dirichlet(np.ones(labels) / 2)).astype(float)
    null = Null(target, tolerance)
    ours = null.most_likely(counts[None])[0]
    slope = counts / np.where(counts > 0, ours, 1)
    best = scipy.optimize.linprog(
        -slope, A_eq=np.ones((1, labels)), b_eq=[1], bounds=list(zip(null.low, null.high, strict=True))
    )
    assert ours.sum() == pytest.approx(1, abs=1e-12)
    assert np.all(ours >= null.low - 1e-15)
    assert np.all(ours <= null.high + 1e-15)
    assert -best.fun <= slope @ ours + 1e-7


def every_count(samples, labels):
    rows = itertools.product(range(samples + 1), repeat=labels)
    return np.array([row for row in rows if sum(row) == samples])


def corners_and_insides(target, tolerance, many=40):
    """Mixtures within the tolerance: the target, random ones, and random ones pushed to the bounds."""
    null, rng = Null(np.array(target), tolerance), np.random.default_rng(0)
    pushed = [null.most_likely(rng.pareto(0.5, (1, len(target))))[0] for _ in range(many)]
    return [np.array(target), *pushed]


@pytest.mark.parametrize("target", [[0.5, 0.5], [0.9, 0.1], [1.0, 0.0], [0.2, 0.3, 0.5], [0.6, 0.4, 0.0]])
@pytest.mark.parametrize("tolerance", [0, 0.05, 0.3])
@pytest.mark.parametrize("samples", [1, 2, 9])
def test_the_expected_e_value_is_at_most_one(target, tolerance, samples):
    """Over all outcomes, for mixtures all over the null: exact, no simulation."""
    rows = every_count(samples, len(target))
    e = np.exp(log_e_value(rows, target, tolerance))
    for mixture in corners_and_insides(target, tolerance):
        assert np.sum(e * scipy.stats.multinomial.pmf(rows, samples, mixture / mixture.sum())) <= 1 + 1e-9


def test_the_expected_e_value_is_at_most_one_for_a_mixture_that_varies():
    """Samples of different shares whose mean is within the tolerance, although single ones are not."""
    shares = np.array([0.1, 0.9, 0.3, 0.7, 0.55, 0.55, 0.0, 1.0])
    chances = np.array([1.0])
    for share in shares:
        chances = np.convolve(chances, [1 - share, share])
    ones = np.arange(len(shares) + 1)
    rows = np.stack([ones, len(shares) - ones], axis=-1)
    assert np.sum(chances * np.exp(log_e_value(rows, EVEN, 0.05))) <= 1


def test_the_expected_e_value_is_at_most_one_without_replacement():
    """Batches of an epoch that holds each sample once."""
    ones = np.arange(13)
    chances = scipy.stats.hypergeom.pmf(ones, 24, 12, 12)
    e = np.exp(log_e_value(np.stack([ones, 12 - ones], axis=-1), EVEN, 0))
    plain = np.sum(scipy.stats.binom.pmf(ones, 12, 0.5) * e)
    assert np.sum(chances * e) <= plain <= 1


@pytest.mark.parametrize("kinds", [([4, 0], [0, 4]), ([3, 1], [1, 3]), ([4, 0], [1, 3]), ([2, 2], [2, 2])])
def test_the_expected_e_value_is_at_most_one_for_units(kinds):
    """Units of 4 samples of one stream each; what labels a stream holds does not matter."""
    first, second = np.array(kinds)
    target = (first + second) / 8
    ones = np.arange(9)
    counts = (ones[:, None] * first + (8 - ones)[:, None] * second) / 4
    chances = scipy.stats.binom.pmf(ones, 8, 0.5)
    assert np.sum(chances * np.exp(log_e_value(counts, target, 0))) <= 1


def test_units_taken_for_samples_would_not_do():
    """The unit matters: counted as samples, batches of one stream are worth far more than 1."""
    ones = np.arange(9)
    counts = np.stack([ones, 8 - ones], axis=-1) * 256
    chances = scipy.stats.binom.pmf(ones, 8, 0.5)
    assert np.sum(chances * np.exp(np.minimum(log_e_value(counts, EVEN, 0), 100))) > 1e6


labelled = st.integers(1, 7).flatmap(
    lambda k: st.tuples(
        st.lists(st.integers(0, 5000), min_size=k, max_size=k),
        st.lists(st.integers(1, 1000), min_size=k, max_size=k),
        st.sampled_from([0.0, 0.01, 0.2]),
        st.permutations(range(k)),
    )
)


@given(labelled)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_labels_may_change_places(case):
    """The e-value does not know the labels' order."""
    counts, weights, tolerance, order = case
    counts, target = np.array(counts), np.array(weights) / sum(weights)
    found = log_e_value(counts, target, tolerance)
    assert log_e_value(counts[order], target[order], tolerance) == pytest.approx(
        float(found), rel=1e-9, abs=1e-9
    )


@given(labelled, st.floats(0, 0.5))
@settings(max_examples=200, derandomize=True, deadline=None)
def test_more_tolerance_is_never_more_evidence(case, more):
    """A larger null contains the smaller one."""
    counts, weights, tolerance, _ = case
    target = np.array(weights) / sum(weights)
    wider = log_e_value(counts, target, min(tolerance + more, 1))
    assert wider <= log_e_value(counts, target, tolerance) + 1e-9


def test_a_sample_that_may_not_come_is_proof():
    """One sample of a label without target alarms at once, even at one false alarm in 1e9 batches."""
    evidence = Evidence(EvidenceSettings(np.array([0.5, 0.5, 0.0]), 0, 1e9))
    assert evidence.update([[128, 128, 0]])[0] < evidence.settings.threshold
    assert evidence.update([[128, 127, 1]])[0] >= evidence.settings.threshold


def by_definition(rows, target, tolerance, scales, unit=1):
    """Readings by the definition, with e-values multiplied as plain numbers."""
    past = dict.fromkeys(scales, 0.0)
    readings = []
    for t in range(1, len(rows) + 1):
        now = {}
        for s in scales:
            begin = (t - 1) // s * s
            e = math.exp(log_e_value(np.sum(rows[begin:t], axis=0) / unit, target, tolerance))
            now[s] = (past[s] + s) * e
            if t % s == 0:
                past[s] = now[s]
        readings.append(math.log10(sum(now.values()) / len(scales)))
    return readings


@pytest.mark.parametrize("unit", [1, 16])
@pytest.mark.parametrize("tolerance", [0, 0.02])
def test_readings_follow_the_definition(tolerance, unit):
    """R ← (R + s) e in blocks of s batches, averaged over the scales, as a plain loop computes it."""
    target, scales = np.array([0.2, 0.3, 0.5]), (1, 4, 16)
    rows = np.random.default_rng(2).multinomial(64, [0.25, 0.28, 0.47], 40)
    evidence = Evidence(EvidenceSettings(target, tolerance, scales=scales, unit=unit))
    expected = by_definition(rows, evidence.settings.target, tolerance, scales, unit)
    np.testing.assert_allclose(evidence.update(rows), expected, rtol=1e-10, atol=1e-10)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
@settings(max_examples=50, derandomize=True, deadline=None)
def test_batches_may_come_in_any_portions(portions):
    """Readings do not depend on how many batches are told of at once."""
    rows = np.random.default_rng(3).multinomial(64, [0.4, 0.6], sum(portions))
    whole = Evidence(EvidenceSettings(EVEN, 0.01)).update(rows)
    evidence = Evidence(EvidenceSettings(EVEN, 0.01))
    parts = [evidence.update(part) for part in np.split(rows, np.cumsum(portions)[:-1])]
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_runs_side_by_side_are_the_runs_alone():
    """A simulation of many runs reads what each alone would."""
    rows = np.random.default_rng(4).multinomial(64, EVEN, (30, 5))
    together = Evidence(EvidenceSettings(EVEN, 0), runs=5).update(rows)
    alone = [Evidence(EvidenceSettings(EVEN, 0)).update(rows[:, run]) for run in range(5)]
    np.testing.assert_allclose(together, np.stack(alone, axis=1), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("at", [0, 1, 7, 8, 65, 199])
def test_a_resumed_run_reads_what_an_uninterrupted_one_does(at):
    """State through JSON at any batch: every later reading is the same to the last bit."""
    rows = np.random.default_rng(5).multinomial(256, [0.48, 0.52], 200)
    whole = Evidence(EvidenceSettings(EVEN, 0)).update(rows)
    first, second = (Evidence(EvidenceSettings(EVEN, 0)) for _ in range(2))
    first.update(rows[:at])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.update(rows[at:]).tolist() == whole[at:].tolist()


def test_a_fold_that_is_not_committed_leaves_no_trace():
    """Folding computes, committing records."""
    evidence = Evidence(EvidenceSettings(EVEN, 0))
    evidence.update([[100, 156]])
    before = evidence.state_dict()
    seen = evidence.fold([[90, 166]])
    assert evidence.state_dict() == before
    evidence.commit(seen)
    assert evidence.state_dict()["batches"] == 2


def test_reset_forgets():
    """After a reset a detector is a new one."""
    evidence = Evidence(EvidenceSettings(EVEN, 0))
    fresh = evidence.state_dict()
    evidence.update([[200, 56]] * 3)
    assert evidence.state_dict() != fresh
    evidence.reset()
    assert evidence.state_dict() == fresh


@pytest.mark.parametrize(
    "other",
    [
        {"target": np.array([0.4, 0.6])},
        {"tolerance": 0.1},
        {"unit": 4},
        {"scales": (1, 2)},
        {"rounding": 0.1},
    ],
)
def test_evidence_against_another_null_is_not_taken_over(other):
    """Evidence against one target says nothing about another."""
    saved = Evidence(EvidenceSettings(EVEN, 0)).state_dict()
    evidence = Evidence(EvidenceSettings(**{"target": EVEN, "tolerance": 0.0, **other}))
    with pytest.raises(ValueError, match="against another target, tolerance, unit or scales"):
        evidence.load_state_dict(saved)
    with pytest.raises(ValueError, match="version 2"):
        evidence.load_state_dict({**saved, "version": 2})


def test_the_alarm_may_be_made_rarer_or_more_frequent_on_resumption():
    """How often a false alarm is allowed is no part of the evidence."""
    saved = Evidence(EvidenceSettings(EVEN, 0, 1e6)).state_dict()
    Evidence(EvidenceSettings(EVEN, 0, 1e3)).load_state_dict(saved)


def test_the_threshold_pays_for_the_head_start_of_the_scales():
    """A + mean(scales) − 1, as the promise derives it."""
    chosen = EvidenceSettings(EVEN, 0, 1e6)
    assert 10**chosen.threshold == pytest.approx(1e6 + (1 + 8 + 64 + 512) / 4 - 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target", [0.5, 0.6]),
        ("target", [math.nan, 1.0]),
        ("target", [-0.5, 1.5]),
        ("target", []),
        ("alarm.tolerance", 1.0),
        ("alarm.tolerance", -0.1),
        ("alarm.tolerance", math.nan),
        ("alarm.false_alarm_every", 0),
        ("alarm.false_alarm_every", math.inf),
        ("unit", 0),
        ("rounding", math.nan),
        ("scales", ()),
        ("scales", (0,)),
    ],
)
def test_settings_out_of_range_are_refused(field, value):
    """Each is quoted with its field and value."""
    given = {"target": EVEN, "tolerance": 0.05, field.removeprefix("alarm."): value}
    with pytest.raises(ConfigError, match=re.escape(f"{field}: {value!r}: ")):
        EvidenceSettings(**given)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("labels", [1, 2, 1000, 10_000])
@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("tolerance", [0, 0.05])
@pytest.mark.parametrize("count", [0, 1, 2**31 + 1, HUGE])
def test_evidence_is_finite_without_warnings_at_the_extremes(labels, sure, tolerance, count):
    """1 to 10,000 labels, shares of 0 and 1, counts from 0 to 2**53, on the right and the wrong label."""
    target = np.eye(labels)[0] if sure else np.full(labels, 1 / labels)
    rows = np.zeros((2, labels), np.int64)
    rows[0, 0] = rows[1, -1] = count
    readings = Evidence(EvidenceSettings(target, tolerance)).update(rows)
    assert np.isfinite(readings).all()


def test_shares_too_small_for_a_quotient_are_finite():
    """The least positive float as a share, with and without counts on it."""
    target = np.array([5e-324, 1.0])
    assert np.isfinite(log_e_value([[0, 5], [3, 2]], target, 0)).all()


def first_alarm(chosen, batch, shares, runs, batches, seed):
    """Batches until each run's alarm, batches + 1 where there is none; ``shares(t)`` of batch t."""
    rng, evidence = np.random.default_rng(seed), Evidence(chosen, runs)
    at = np.full(runs, batches + 1)
    for t in range(1, batches + 1):
        reading = evidence.update(rng.multinomial(batch, shares(t), runs)[None])[0]
        at = np.where((reading >= chosen.threshold) & (at > t), t, at)
        if at.max() <= t:
            break
    return at


@pytest.mark.parametrize(
    ("target", "tolerance", "shares"),
    [([0.5, 0.5], 0, [0.5, 0.5]), ([0.5, 0.5], 0.05, [0.55, 0.45]), ([0.7, 0.2, 0.1], 0, [0.7, 0.2, 0.1])],
)
def test_false_alarms_are_as_rare_as_promised(target, tolerance, shares):
    """2,000 healthy runs of t = 100 batches: P(τ ≤ t) ≤ (t + mean(s) − 1) / (A + mean(s) − 1)."""
    chosen = EvidenceSettings(np.array(target), tolerance, 1000)
    alarms = np.mean(first_alarm(chosen, 256, lambda _: shares, 2000, 100, 6) <= 100)
    assert alarms <= (100 + 145.25) / (1000 + 145.25)


def test_no_alarm_on_many_healthy_runs_at_the_default():
    """10,000 runs of 20 batches, looked at after each: at most 3 alarms (promised: 1.7 on average)."""
    chosen = EvidenceSettings(EVEN, 0)
    assert np.sum(first_alarm(chosen, 256, lambda _: EVEN, 10_000, 20, 7) <= 20) <= 3


@pytest.mark.parametrize(("batch", "share", "goal"), [(256, 0.55, 16), (256, 0.60, 5), (2000, 0.52, 16)])
def test_a_bias_is_found_in_time(batch, share, goal):
    """At tolerance 0 and one false alarm in a million batches, 95 of 100 runs within twice the goal."""
    at = first_alarm(EvidenceSettings(EVEN, 0), batch, lambda _: [share, 1 - share], 100, 2 * goal, 8)
    assert np.quantile(at, 0.95) <= 2 * goal
    assert np.median(at) <= goal


@pytest.mark.parametrize(
    ("batch", "target", "shares", "tolerance", "goal"),
    [
        (2000, [0.5, 0.5], [0.49, 0.51], 0, 64),
        (2000, [0.3, 0.7], [0.33, 0.67], 0, 8),
        (256, [0.3, 0.7], [0.33, 0.67], 0, 48),
        (256, [0.1] * 10, [*[1 / 9] * 9, 0], 0, 2),
        (256, [0.1] * 10, [*[1 / 9] * 9, 0], 0.05, 4),
    ],
    ids=["1 % mislabelled", "a tenth more", "in small batches", "a stream gone", "at the default tolerance"],
)
def test_a_fault_in_the_data_is_found_in_time(batch, target, shares, tolerance, goal):
    """At one false alarm in a million batches, 95 of 100 runs of 200 within the goal."""
    at = first_alarm(EvidenceSettings(np.array(target), tolerance), batch, lambda _: shares, 200, goal, 11)
    assert np.mean(at <= goal) >= 0.95


def test_a_see_saw_is_found_in_time():
    """A share that swings by ±0.05 over 640 batches of 256 is found within 96 batches by the median run."""

    def swinging(t):
        share = 0.5 + 0.05 * math.sin(2 * math.pi * t / 640)
        return [share, 1 - share]

    assert np.median(first_alarm(EvidenceSettings(EVEN, 0), 256, swinging, 100, 192, 9)) <= 96


def test_stratified_rounding_never_alarms():
    """Thirds of 64 are 22/21/21 for ever: silent over 100,000 batches with the rounding added."""
    chosen = EvidenceSettings(np.full(3, 1 / 3), 0, rounding=1 / 64)
    assert Evidence(chosen).update(np.tile([22, 21, 21], (100_000, 1))).max() < chosen.threshold


def test_stratified_rounding_would_alarm_without_its_allowance():
    """Without the allowance 22/21/21 is a bias of 1 %, and found as such."""
    chosen = EvidenceSettings(np.full(3, 1 / 3), 0)
    assert Evidence(chosen).update(np.tile([22, 21, 21], (5000, 1))).max() > chosen.threshold


@pytest.mark.parametrize(("method", "unit"), [("per_stream", 256), ("device_per_stream", 32)])
def test_batches_of_one_stream_never_alarm(method, unit):
    """Whole batches, or device batches, of one stream each: silent with the unit, found without."""
    rng = np.random.default_rng(10)
    target = np.array([0.5, 0.3, 0.2])
    draws = rng.permuted(np.repeat([0, 1, 2], (target * 2000 * 256 // unit).astype(int)))
    rows = np.eye(3, dtype=int)[draws].reshape(2000, -1, 3).sum(1) * unit
    assert batching_effects(method, 32, 256) == (unit, 0.0)
    fair = Evidence(EvidenceSettings(target, 0, unit=unit))
    assert fair.update(rows).max() < fair.settings.threshold
    naive = Evidence(EvidenceSettings(target, 0))
    assert naive.update(rows).max() > naive.settings.threshold


def test_other_batching_methods_draw_single_samples():
    """Random and stratified batches are no units; stratified ones round to a sample."""
    assert batching_effects("random", 32, 256) == (1, 0.0)
    assert batching_effects("stratified", 32, 256) == (1, 1 / 256)


def load_bench():
    path = Path(__file__).parents[1] / "scripts" / "bench_alarm.py"
    spec = importlib.util.spec_from_file_location("bench_alarm", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench():
    return load_bench()


@pytest.mark.parametrize("shuffle", ["py1e", "py1br", "py1s", "py2s", "naive", "off"])
@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
def test_healthy_orders_of_the_real_loader_never_alarm(bench, method, shuffle):
    """An epoch of streaming's generate_work, labels scattered in every shard: silent under any shuffle."""
    assert bench.watch_epoch(method, shuffle, 8, 4096, "scattered", seed=1) == (True, False)


def test_an_unshuffled_order_alarms(bench):
    """Labels in blocks and no shuffle: the first label for half an epoch, then the other."""
    assert bench.watch_epoch("random", "off", 8, 4096, "blocks", seed=1) == (False, True)


def test_randperm_shares_are_those_of_its_draws(bench):
    """The shares of random32 % n, against counting all 2**32 draws in closed form for one small n."""
    draws = np.bincount(np.arange(2**32 % 70, dtype=np.int64), minlength=70) + 2**32 // 70
    np.testing.assert_allclose(bench.modulo_shares(70), draws.reshape(10, 7).sum(1) / 2**32, rtol=1e-13)


def test_reading_falls_after_a_long_bias():
    """Ten thousand biased batches carry over no more evidence than a few: healthy ones bring it down."""
    chosen = EvidenceSettings(np.array([0.5, 0.5]), 0.05)
    evidence = Evidence(chosen)
    biased = evidence.update(np.tile([256, 0], (10_000, 1)))
    assert biased.max() > 1000 > chosen.threshold
    healthy = evidence.update(np.tile([128, 128], (4000, 1)))
    assert healthy[-1] < chosen.threshold - 3
    again = evidence.update(np.tile([256, 0], (20, 1)))
    assert again[-1] > chosen.threshold
