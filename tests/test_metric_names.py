"""Labels as names in metrics."""

from __future__ import annotations

import hashlib
import posixpath
import re
import time
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from composer_mixmon.config import is_label
from composer_mixmon.metric_names import metric_names

ALPHABET = "aAbßſ日é/._- +%:\\0f\N{COMBINING ACUTE ACCENT}\N{KELVIN SIGN}"
LABELS = st.lists(
    st.one_of(st.text(st.sampled_from(ALPHABET), min_size=1, max_size=6), st.text(min_size=1, max_size=200)),
    max_size=12,
    unique=True,
).map(lambda labels: tuple(filter(is_label, labels)))
SHA = hashlib.sha256(b"C++").hexdigest()


@pytest.mark.parametrize(
    "label",
    ["ja", "en/c4", "日本語", "part07", "v1.0", "a b", "unlabelled", "x-1234567", "0", "_", "x" * 200],
)
def test_most_labels_are_their_own_names(label: str) -> None:
    """Streams, languages in any script and parts of the dataset are called what they are called."""
    assert metric_names((label,)) == (label,)


def test_what_is_refused_is_marked() -> None:
    """The name stays legible, and the same whatever the other labels are."""
    assert metric_names(("C++",)) == (f"C__-{SHA[:8]}",)
    assert metric_names(("ja", "C++", "50%"))[1] == f"C__-{SHA[:8]}"


def test_what_would_be_taken_for_another_is_marked() -> None:
    """Labels that differ in case only, and a label that is a folder of another; the others are not."""
    names = metric_names(("Wiki", "wiki", "ja", "ja/news", "ja/news/2020"))
    assert re.fullmatch(
        r"Wiki-[0-9a-f]{8} wiki-[0-9a-f]{8} ja-[0-9a-f]{8} ja_news-[0-9a-f]{8}", " ".join(names[:4])
    )
    assert names[4] == "ja/news/2020"


def test_a_label_cannot_pose_as_a_marked_one() -> None:
    """Not even one that is made to."""
    names = metric_names(("C++", f"C__-{SHA[:8]}", f"C__-{SHA[:8]}/x"))
    assert len(set(names)) == 3
    assert names[0] == f"C__-{SHA[:8]}"


def test_where_the_mark_is_the_same_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two labels of which the same is left, and whose hashes begin alike."""

    class Alike:
        def __init__(self, label: bytes) -> None:
            self.digest = "0" * 8 + hashlib.md5(label).hexdigest()

        def hexdigest(self) -> str:
            return self.digest

    monkeypatch.setattr("composer_mixmon.metric_names.hashlib", SimpleNamespace(sha256=Alike))
    names = metric_names(("+!", "+?", "plain"))
    assert names[2] == "plain"
    assert [name[:11] for name in names[:2]] == ["__-00000000"] * 2
    assert names[0] != names[1]
    assert len(names[0]) == len("__-") + 16


@given(LABELS)
@settings(max_examples=400, deadline=None, derandomize=True)
@example(("a", "A", "a/b", "A/b/c", "a-00000000", "a-00000000/x"))
@example(("日" * 200, "日" * 199, "x" * 200))
@example((".", "..", "../x", "a//b", "/a", "a/", " a", "a "))
def test_names_are_legal_and_different(labels: tuple[str, ...]) -> None:
    """By MLflow's rules and a file system's; different without regard to case; none a folder of another."""
    names = metric_names(labels)
    assert len(names) == len(labels)
    assert len({name.casefold() for name in names}) == len(labels)
    for name in names:
        key = f"mixmon/window/ratio/{name}"
        assert re.fullmatch(r"[/\w.\- ]*", key)
        assert posixpath.normpath(key) == key
        assert len(key) <= 250
        assert all(0 < len(part.encode()) <= 255 for part in name.split("/"))
        assert not any(other.casefold().startswith(f"{name}/".casefold()) for other in names)


def test_ten_thousand_labels_cost_a_moment() -> None:
    """Once: 0.2 s on a slow core, and nothing after that."""
    labels = tuple(f"source+{i}" for i in range(10_000))
    began = time.perf_counter()
    names = metric_names(labels)
    once = time.perf_counter() - began
    assert len(set(names)) == 10_000
    assert once < 2
    began = time.perf_counter()
    assert metric_names(labels) is names
    assert time.perf_counter() - began < once / 10
