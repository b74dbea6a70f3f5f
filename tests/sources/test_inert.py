"""Pickles are read without running what is in them."""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_mixmon.sources.inert import NotPlainError, Opaque, read_pickle

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.none() | st.booleans() | st.integers() | st.text()
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=30,
)
STACK_GLOBAL = b"\x80\x04\x8c\x02os\x8c\x06system\x93"


@settings(max_examples=150, deadline=None, derandomize=True)
@given(PLAIN, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_out_as_python_reads_them(value: Any, protocol: int) -> None:
    """For every protocol; bytes apart, which protocols before 3 build by a call."""
    data = pickle.dumps(value, protocol)
    if b"_codecs" in data or b"c__builtin__\nbytes" in data:
        return
    found = read_pickle(data)
    assert found == pickle.loads(data)
    assert repr(found) == repr(value)  # booleans and ints apart


def test_ordered_dicts_and_shared_values() -> None:
    """A mapping is one whatever its class; what the memo repeats is the same object."""
    shared = [1]
    found = read_pickle(pickle.dumps({"a": collections.OrderedDict(x=shared), "b": shared}))
    assert found == {"a": {"x": [1]}, "b": [1]}
    assert found["a"]["x"] is found["b"]


class Calls:
    """Pickled as a call."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


class Local:
    """A class that would run code as its state is set."""

    marker = ""

    def __setstate__(self, state: str) -> None:
        Path(state).write_text("ran")


class Setting(Local):
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Local, (), self.path


def hostile(marker: Path) -> dict[str, bytes]:
    """Pickles that leave a marker where Python's unpickler reads them."""
    command = f"touch {marker}"
    code = f"__import__('pathlib').Path({str(marker)!r}).write_text('ran')"
    text = command.encode()
    short = b"\x8c" + bytes([len(text)]) + text
    return {
        "os.system by REDUCE": pickle.dumps(Calls(os.system, (command,)), 2),
        "builtins.eval by REDUCE": pickle.dumps(Calls(eval, (code,)), 4),
        "a call within a call": pickle.dumps({"state": [Calls(eval, (code,)), Calls(os.system, (command,))]}),
        "__setstate__ of a local class": pickle.dumps([Setting(str(marker))]),
        "STACK_GLOBAL from the memo": b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93"
        + short
        + b"\x85R.",
        "INST": b"(S'" + text + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'" + text + b"'\no.",
        "BUILD on a call's result": pickle.dumps(Calls(eval, (code,), {"a": 1}), 2),
        "NEWOBJ_EX": b"\x80\x04cbuiltins\neval\nS'" + code.replace("'", '"').encode() + b"'\n\x85}\x92.",
        "items from an iterator": pickle.dumps(
            Calls(list, (), None, iter([Calls(os.system, (command,))])), 2
        ),
    }


@pytest.mark.parametrize("name", list(hostile(Path("/nowhere"))))
def test_hostile_pickles_run_nothing(tmp_path: Path, name: str) -> None:
    """Each leaves its marker where Python reads it (so it is hostile indeed), and none here."""
    marker = tmp_path / "marker"
    data = hostile(marker)[name]
    read_pickle(data)
    assert not marker.exists()
    if name != "NEWOBJ_EX":  # which Python refuses for what is no class
        with suppress(AttributeError):  # a number has no state to set
            pickle.loads(data)
        assert marker.exists()


def test_a_call_is_told_of() -> None:
    """Name and arguments stay readable, as data."""
    found = read_pickle(pickle.dumps(Calls(os.system, ("rm",)), 2))
    assert isinstance(found, Opaque)
    assert (found.name, found.arguments) == ("posix.system", ("rm",))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\x04",
        STACK_GLOBAL,
        b"\x80\x04\x93.",
        b"h\x05.",
        b"(.",
        b"a.",
        b"u.",
        b"]s.",
        b"t.",
        b"R.",
        b"b.",
        b"\x82\x01.",  # EXT1
        b"\x80\x05\x97.",  # NEXT_BUFFER
        b"I1x\n.",
        b"\x8a\xff.",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\xff.",
        b"\xff.",
    ],
)
def test_damaged_pickles_are_refused(data: bytes) -> None:
    """With one kind of error, whatever is wrong."""
    with pytest.raises(NotPlainError):
        read_pickle(data)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_any_damage_is_refused_or_read(data: Any) -> None:
    """Bytes changed at random, and pickles cut anywhere, raise nothing else."""
    whole = bytearray(
        pickle.dumps({"a": [1, (2.5, "x")], "b": collections.OrderedDict(c=b"y"), "d": os.system})
    )
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(NotPlainError):
        read_pickle(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


def test_bombs_cost_no_more_than_their_size() -> None:
    """A memo index of 2**31, values that double a hundred times, their hash, and huge lengths."""
    start = time.monotonic()
    assert read_pickle(b"]r\xff\xff\xff\x7f.") == []
    doubling = b"\x80\x02K\x01" + b"".join(b"q%c0h%ch%c\x86" % (i, i, i) for i in range(100))
    assert isinstance(read_pickle(doubling + b"."), tuple)
    assert isinstance(next(iter(read_pickle(b"}" + doubling[2:] + b"K\x01s."))), Opaque)  # hash: 2**100 steps
    for data in (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", b"\x8b\xff\xff\xff\x7f.", b"(" * 100_000 + b"."):
        with pytest.raises(NotPlainError):
            read_pickle(data)
    with pytest.raises(NotPlainError, match="more than 5000000 opcodes"):
        read_pickle(b"N" * 5_000_001 + b".")
    assert time.monotonic() - start < 60


def test_depth_is_no_limit() -> None:
    """A hundred thousand nested lists are built and let go of."""
    found = read_pickle(b"]" * 100_000 + b"a" * 99_999 + b".")
    assert isinstance(found, list)


def test_every_opcode_is_known_or_refused() -> None:
    """Opcodes of Python's newest protocol that this reader does not know name code or buffers."""
    known = set()
    for opcode in pickletools.opcodes:
        try:
            read_pickle(io.BytesIO(opcode.code.encode("latin-1") + b"\0" * 16).getvalue())
        except NotPlainError as error:
            if "uses the pickle opcode" in str(error):
                continue
        known.add(opcode.name)
    assert {op.name for op in pickletools.opcodes} - known == {"EXT1", "EXT2", "EXT4", "NEXT_BUFFER"}
