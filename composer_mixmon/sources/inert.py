"""Reads the plain values out of a pickle without running anything that is in it.

Python's unpickler *calls* what the file names: that is how a checkpoint can run ``os.system``. This reader
has no way to. It goes through the opcodes as ``pickletools`` splits them and builds numbers, texts, lists,
tuples and dicts. A global stays a name, and what would be made by calling it (REDUCE, NEWOBJ, OBJ, INST,
BUILD, persistent ids such as tensors' storages) becomes an :class:`Opaque` that holds the name and the
arguments. Nothing is imported, looked up, called or compared that the file chose, and nothing is hashed but
plain scalars: keys that are something else are kept by identity. Opcodes that it does not know are refused.

Work and memory are bounded by the size of the file and the number of opcodes: each adds at most one value,
and what is nested or repeated through the memo is shared, never copied.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from composer_mixmon.errors import MixmonError

__all__ = ["NotPlainError", "Opaque", "read_pickle"]

# A checkpoint's optimizer needs some forty opcodes a tensor: this is enough for fifty thousand tensors.
_MOST_OPCODES = 5_000_000
_DICTS = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")


class NotPlainError(MixmonError):
    """A pickle is damaged, too large, or not what this reader understands."""


@dataclass(eq=False)
class Opaque:
    """What a pickle would have called something for.

    Attributes:
        name: Its class or function, as ``module.name``.
        arguments: What that would have been called with.
        state: What BUILD would have set on it.
    """

    name: str
    arguments: Any = ()
    state: Any = None


def read_pickle(data: bytes) -> Any:
    """Build the values of a pickle.

    Args:
        data: The pickle, of any protocol.

    Returns:
        Plain values, with an :class:`Opaque` wherever the file names code.

    Raises:
        NotPlainError: The pickle is damaged, longer than five million opcodes, or uses opcodes such as
            those of ``copyreg`` extensions, which name code by number.
    """
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if opcode.name == "STOP":
                return machine.pop()
            if count >= _MOST_OPCODES:
                raise NotPlainError(f"has more than {_MOST_OPCODES} opcodes")
            machine.step(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        raise NotPlainError(f"is a damaged pickle: {error}") from None
    raise NotPlainError("is a pickle that has no end")


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = frozenset(
    [
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    ]
)
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,  # elements are never hashed
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUT = ("PUT", "BINPUT", "LONG_BINPUT")
_GET = ("GET", "BINGET", "LONG_BINGET")
_IGNORED = ("PROTO", "FRAME", "READONLY_BUFFER")


class _Machine:
    """The unpickler's stack and memo."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # stacks under the marks
        self._memo: dict[int, Any] = {}  # a dict: a huge index takes no memory

    def step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            self._stack.append(argument)
        elif name in _EMPTY:
            self._stack.append(_EMPTY[name]())
        elif name in _PUT:
            self._memo[argument] = self._stack[-1]
        elif name in _GET:
            self._stack.append(self._memo[argument])
        elif name in _TUPLES:
            self._stack.append(tuple(self.take(_TUPLES[name])))
        elif name not in _IGNORED:
            step = _STEPS.get(name)
            if step is None:
                raise NotPlainError(f"uses the pickle opcode {name}")
            step(self, argument)

    def pop(self) -> Any:
        return self._stack.pop()

    def take(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError("the stack is empty")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def mark(self, _: Any) -> None:
        self._below.append(self._stack)
        self._stack = []

    def to_mark(self) -> list[Any]:
        taken, self._stack = self._stack, self._below.pop()
        return taken

    def pop_one(self, _: Any) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self.to_mark()

    def pop_mark(self, _: Any) -> None:
        self.to_mark()

    def duplicate(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def tuple_(self, _: Any) -> None:
        taken = self.to_mark()
        self._stack.append(tuple(taken))

    def list_(self, _: Any) -> None:
        taken = self.to_mark()
        self._stack.append(taken)

    def dict_(self, _: Any) -> None:
        taken = self.to_mark()
        self._stack.append({})
        self.set_(taken)

    def append(self, _: Any) -> None:
        self.extend(self.take(1))

    def appends(self, _: Any) -> None:
        self.extend(self.to_mark())

    def extend(self, values: list[Any]) -> None:
        if isinstance(self._stack[-1], list):
            cast("list[Any]", self._stack[-1]).extend(values)

    def setitem(self, _: Any) -> None:
        self.set_(self.take(2))

    def setitems(self, _: Any) -> None:
        self.set_(self.to_mark())

    def set_(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, dict):
            for key, value in zip(items[::2], items[1::2], strict=True):
                target[_as_key(key)] = value

    def global_(self, argument: str) -> None:
        self._stack.append(Opaque(argument.replace(" ", ".", 1)))

    def stack_global(self, _: Any) -> None:
        module, name = self.take(2)
        named = isinstance(module, str) and isinstance(name, str)
        self._stack.append(Opaque(f"{module}.{name}" if named else "?"))

    def call(self, _: Any) -> None:
        function, arguments = self.take(2)
        self._stack.append(_made(function, arguments))

    def call_with_names(self, _: Any) -> None:
        function, arguments, names = self.take(3)
        self._stack.append(_made(function, (arguments, names)))

    def object_(self, _: Any) -> None:
        function, *arguments = self.to_mark()
        self._stack.append(_made(function, tuple(arguments)))

    def instance(self, argument: str) -> None:
        arguments = tuple(self.to_mark())
        self._stack.append(Opaque(argument.replace(" ", ".", 1), arguments))

    def build(self, _: Any) -> None:
        (state,) = self.take(1)
        if isinstance(self._stack[-1], Opaque):
            self._stack[-1].state = state

    def persistent(self, argument: Any) -> None:
        self._stack.append(Opaque("persistent id", argument))

    def stored(self, _: Any) -> None:
        (argument,) = self.take(1)
        self._stack.append(Opaque("persistent id", argument))


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "POP": _Machine.pop_one,
    "POP_MARK": _Machine.pop_mark,
    "DUP": _Machine.duplicate,
    "MEMOIZE": _Machine.memoize,
    "TUPLE": _Machine.tuple_,
    "LIST": _Machine.list_,
    "FROZENSET": _Machine.list_,
    "DICT": _Machine.dict_,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "ADDITEMS": _Machine.appends,
    "SETITEM": _Machine.setitem,
    "SETITEMS": _Machine.setitems,
    "GLOBAL": _Machine.global_,
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "NEWOBJ_EX": _Machine.call_with_names,
    "OBJ": _Machine.object_,
    "INST": _Machine.instance,
    "BUILD": _Machine.build,
    "PERSID": _Machine.persistent,
    "BINPERSID": _Machine.stored,
}


def _as_key(key: Any) -> Any:
    plain = key is None or isinstance(key, (str, int, float, bytes, Opaque))
    return key if plain else Opaque("key", key)


def _made(function: Any, arguments: Any) -> Any:
    """What calling would have made; a mapping that is empty, or else inert."""
    name = function.name if isinstance(function, Opaque) else "?"
    return {} if name in _DICTS else Opaque(name, arguments)
