"""Keeps `kv_transfer_params` from reaching the client, without touching any other byte.

vLLM prints the key in every answer that does not stream, with null if there is nothing to say;
some builds print it in the last event of a stream too (vllm#40186). Where it has a value, the
value becomes null, which is what an engine without P/D would have printed.

Inside a string of JSON every quote is escaped, so the key with its two quotes and a colon behind
it cannot be part of anything that a model or a user wrote.
"""

import enum
import re

_KEY = b'"kv_transfer_params"'
_SPACE = b" \t\r\n"
_IN_VALUE = re.compile(rb'["{}\[\]]')
_IN_STRING = re.compile(rb'["\\]')


class _Place(enum.Enum):
    TEXT = "text"
    COLON = "colon"
    VALUE = "value"
    NESTED = "nested"
    STRING = "string"


class ParamsEraser:
    """Takes an answer piece by piece, cut anywhere, and gives back what the client may see."""

    def __init__(self) -> None:
        self._place = _Place.TEXT
        # The end of the text so far, as far as it may be the beginning of the key.
        self._tail = b""
        self._depth = 0
        self._escaped = False

    def feed(self, piece: bytes) -> bytes:
        """What to send on for `piece`. May be empty; nothing is held back."""
        if self._place is _Place.TEXT and _KEY not in self._tail + piece:
            self._remember(piece)
            return piece
        out: list[bytes] = []
        at = 0
        while at < len(piece):
            at = self._step(piece, at, out)
        return b"".join(out)

    def _step(self, piece: bytes, at: int, out: list[bytes]) -> int:
        match self._place:
            case _Place.TEXT:
                return self._text(piece, at, out)
            case _Place.COLON:
                return self._colon(piece, at, out)
            case _Place.VALUE:
                return self._value(piece, at, out)
            case _Place.NESTED:
                return self._nested(piece, at)
            case _Place.STRING:
                return self._string(piece, at)

    def _text(self, piece: bytes, at: int, out: list[bytes]) -> int:
        seen = len(self._tail)
        window = self._tail + piece[at:]
        found = window.find(_KEY)
        if found < 0:
            rest = piece[at:]
            out.append(rest)
            self._remember(rest)
            return len(piece)
        end = at + found + len(_KEY) - seen
        out.append(piece[at:end])
        # A key whose opening quote is escaped is the end of some other string.
        escaped = found > 0 and window[found - 1 : found] == b"\\"
        self._tail = b""
        if not escaped:
            self._place = _Place.COLON
        return end

    def _colon(self, piece: bytes, at: int, out: list[bytes]) -> int:
        byte = piece[at : at + 1]
        if byte == b":":
            self._place = _Place.VALUE
        elif byte not in _SPACE:
            self._place = _Place.TEXT
            return at
        out.append(byte)
        return at + 1

    def _value(self, piece: bytes, at: int, out: list[bytes]) -> int:
        byte = piece[at : at + 1]
        if byte in _SPACE:
            out.append(byte)
            return at + 1
        if byte in b"{[":
            self._place, self._depth = _Place.NESTED, 0
            out.append(b"null")
        else:
            # Null, or nothing that vLLM ever prints here.
            self._place = _Place.TEXT
        return at

    def _nested(self, piece: bytes, at: int) -> int:
        found = _IN_VALUE.search(piece, at)
        if found is None:
            return len(piece)
        byte = found.group()
        if byte == b'"':
            self._place = _Place.STRING
        elif byte in b"{[":
            self._depth += 1
        else:
            self._depth -= 1
            if self._depth == 0:
                self._place = _Place.TEXT
        return found.end()

    def _string(self, piece: bytes, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.search(piece, at)
        if found is None:
            return len(piece)
        if found.group() == b"\\":
            self._escaped = True
        else:
            self._place = _Place.NESTED
        return found.end()

    def _remember(self, piece: bytes) -> None:
        # One byte more than the key lacks, to see a backslash in front of it.
        self._tail = (self._tail + piece[-len(_KEY) :])[-len(_KEY) :]
