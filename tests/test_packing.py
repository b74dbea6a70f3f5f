"""Counts and names as text, and back."""

from __future__ import annotations

import base64
import lzma

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.packing import pack_counts, pack_names, unpack_counts, unpack_names

fixed = settings(deadline=None, derandomize=True)


@fixed
@given(
    st.integers(0, 30),
    st.integers(1, 8),
    st.sampled_from([0, 200, 60_000, 2**31, 2**53]),
    st.sampled_from([None, 1, 9]),
    st.integers(0, 99),
)
def test_packed_counts_come_back(rows: int, labels: int, most: int, level: int | None, seed: int) -> None:
    """Counts of any size are packed and unpacked without loss."""
    counts = np.random.default_rng(seed).integers(0, most + 1, (rows, labels))
    back = unpack_counts(pack_counts(counts, level), labels)
    assert back.dtype == np.int64
    assert np.array_equal(back, counts)


@fixed
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1), min_size=1
    )
)
def test_packed_names_come_back(names: list[str]) -> None:
    """Names in any script are packed and unpacked without loss."""
    assert unpack_names(pack_names(names)) == tuple(names)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "|u1:",
        "|O8z:eJwDAAAAAAE=",
        "|u1z:!!",
        "|u1z:eNpj",
        "<u4z:eNpjAAAAAQAB",
        "|u1:!!",
        "|u1:\x00",
        "|u1:ñ",
    ],
)
def test_damaged_counts_are_refused(text: str) -> None:
    """Text that is no packed table of two labels raises ValueError and nothing else."""
    with pytest.raises(ValueError, match=r"."):
        unpack_counts(text, 2)


@fixed
@given(st.integers(0, 200), st.integers(0, 200))
def test_a_cut_or_changed_text_is_refused(cut: int, change: int) -> None:
    """Wherever it is cut or a character is changed: no other names come out."""
    whole = pack_names(["ja", "en", "de"])
    cut, change = cut % len(whole), change % len(whole)
    for damaged in (
        whole[:cut],
        whole[:change] + ("0" if whole[change] != "0" else "1") + whole[change + 1 :],
    ):
        try:
            assert unpack_names(damaged) == ("ja", "en", "de")
        except ValueError:
            continue


def test_a_bomb_is_refused() -> None:
    """A few kilobytes that would take half a gigabyte of memory."""
    bomb = base64.b85encode(lzma.compress(bytes(1 << 29), preset=0)).decode()
    assert len(bomb) < 1 << 17
    with pytest.raises(ValueError, match="more than any books do"):
        unpack_names(bomb)
