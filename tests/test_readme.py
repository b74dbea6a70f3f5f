"""The table in README.md beside this file names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
ROWS = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", (TESTS / "README.md").read_text("utf-8"), re.MULTILINE)


def is_there(named: str) -> bool:
    """Whether a file is there and, where one is named, the test in it."""
    found = re.fullmatch(r"`([\w/]+\.py)(?:::(test_\w+))?`", named)
    if found is None:
        return False
    file = (TESTS.parent if found[1].startswith("scripts/") else TESTS) / found[1]
    text = file.read_text("utf-8") if file.is_file() else ""
    return bool(re.search(rf"^def {found[2] or ''}\b", text, re.MULTILINE))


def test_there_are_58_rows() -> None:
    """In their order, each once."""
    assert [int(number) for number, _ in ROWS] == list(range(1, 59))


def test_what_a_row_names_is_there() -> None:
    """At least one test or benchmark for each row, and nothing that was renamed or removed."""
    assert [name for _, shown in ROWS for name in shown.split(", ") if not is_there(name)] == []
