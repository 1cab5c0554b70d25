"""A deterministic pseudo-model whose answers depend on the KV that it reads.

The KV of a token (its *slot*) is computed from the token and from the slots of all tokens
before it, and the next token is computed from all slots. So an engine that reads another
conversation's blocks gives another answer, as a real model does, and an engine that reads
the right blocks gives the answer that it would have given by computing them.

Everything is integer arithmetic on 64 bits: equal on every machine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvplane_services.sim.tokenizer import EOS

_MASK = (1 << 64) - 1

# What the model writes: printable ASCII, spaces more often than other characters.
_ALPHABET = tuple(b"abcdefghijklmnopqrstuvwxyz" * 3 + b"     ,.?-0123456789ABCDEFGHIJKLMNOP")

# One token in this many ends the reply.
_EOS_EVERY = 331


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


@dataclass(slots=True)
class Attention:
    """What the slots up to some position amount to."""

    state: int

    @classmethod
    def start(cls, *, seed: int) -> "Attention":
        """Before the first token; `seed` stands for the model's weights."""
        return cls(_mix(seed + 1))

    def slot_of(self, token: int) -> int:
        """The KV of the next token."""
        return _mix(self.state + (token + 1) * 0x9E3779B97F4A7C15 & _MASK)

    def read(self, slots: Iterable[int]) -> None:
        """Attends to the KV of the next tokens, whatever it holds."""
        state = self.state
        for slot in slots:
            state = ((state ^ slot) * 0xD6E8FEB86659FD93 + 1) & _MASK
        self.state = state

    def compute(self, tokens: Sequence[int]) -> list[int]:
        """The KV of the next tokens, attending to each in turn."""
        slots: list[int] = []
        for token in tokens:
            slot = self.slot_of(token)
            self.read((slot,))
            slots.append(slot)
        return slots

    def next_token(self, *, may_end: bool) -> int:
        """The token that follows what was read; EOS only if `may_end`."""
        value = _mix(self.state ^ 0xA5A5A5A5A5A5A5A5)
        if may_end and value % _EOS_EVERY == 0:
            return EOS
        return _ALPHABET[(value >> 16) % len(_ALPHABET)]
