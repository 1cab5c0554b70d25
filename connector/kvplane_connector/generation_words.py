"""The owner's generation words: one number per retention that changes before its blocks can.

A NIXL read is one-sided, so the owner of blocks can give them away while somebody reads them. It
therefore keeps a word for each retention in host memory that readers can read as well, tells the
word's place and value in the handle, and adds one to it before it reports the retention as
over: only after that report does vLLM give the blocks to anybody else. A reader that finds the
value of the handle *after* it has all data has read what the handle promised, however long it took.

Words start at a random number and only grow, so that no value comes twice in a place, nor in what
another process has there later. The value of a slot is known on both halves without a message:
the worker counts ends, and the scheduler counts the same ends when all ranks reported them.
"""

import ctypes
import mmap
import secrets
import threading
from collections import deque
from collections.abc import Container, Iterable, Mapping
from typing import Any

from kvplane.transfer_params import Word, WordPlace
from kvplane_connector.versions import rank_of

# NIXL backends whose reads have fetched all data from the owner when they say that they are done.
BACKENDS = frozenset({"UCX", "LIBFABRIC"})
# Retentions and staged prompts at once; further ones are fenced by an expiry.
SLOTS = 4096
WORD_BYTES = 8
_MODULUS = 1 << 64


class WordMemory:
    """Words in memory of their own, at an address that does not change.

    Args:
        words: How many.

    """

    def __init__(self, words: int) -> None:
        self._mapped = mmap.mmap(-1, words * WORD_BYTES)
        self._words = (ctypes.c_uint64 * words).from_buffer(self._mapped)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> int:
        return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._words[index] = value % _MODULUS

    @property
    def address(self) -> int:
        """Where the first word is."""
        return ctypes.addressof(self._words)

    def publish(self) -> None:
        """Returns once all words set so far can be read by everybody, before any later write."""
        # Taking and leaving a lock orders writes on every kind of processor.
        with self._lock:
            pass


class WordTable:
    """The worker's side: changes the words of what is over.

    Args:
        memory: The words; the first `slots` of them are retentions'.
        slots: How many retentions have one at most.
        start: What all words begin at; a random number unless given.

    """

    def __init__(self, memory: WordMemory, *, slots: int = SLOTS, start: int | None = None) -> None:
        self._memory = memory
        self.slots = slots
        self.start = secrets.randbits(63) if start is None else start
        for slot in range(slots):
            memory[slot] = self.start
        memory.publish()
        self._slots: dict[str, int] = {}

    @property
    def address(self) -> int:
        """Where the first word is."""
        return self._memory.address

    def begin(self, slots: Mapping[str, int], *, alive: Container[str]) -> None:
        """These retentions began, each with its slot. To be called before their blocks can go.

        Args:
            slots: By retention.
            alive: Those that are not over. A reader can be done before we hear of the slot; the
                word of what is not known to be kept changes at once.

        """
        for name, slot in slots.items():
            if name in alive:
                self._slots[name] = slot
            else:
                self._change(slot)
        if slots:
            self._memory.publish()

    def end(self, names: Iterable[str]) -> None:
        """These are over: to be called before anybody is told so."""
        for name in names:
            slot = self._slots.pop(name, None)
            if slot is not None:
                self._change(slot)
        self._memory.publish()

    def end_all(self) -> None:
        """Nothing that was promised holds any longer."""
        for slot in range(self.slots):
            self._change(slot)
        self._slots.clear()
        self._memory.publish()

    def _change(self, slot: int) -> None:
        self._memory[slot] += 1


class WordSlots:
    """The scheduler's side: gives slots out, and knows the value of each word.

    Args:
        tables: By pipeline and tensor rank: address and start of its table.
        slots: Slots of each table.

    """

    def __init__(
        self, tables: Mapping[tuple[int, int], tuple[int, int]], *, slots: int = SLOTS
    ) -> None:
        self._tables = dict(tables)
        self._slots = slots
        # The longest unused first: what is stale anywhere then differs by as much as can be.
        self._free = deque(range(slots))
        self._ends = [0] * slots
        self._taken: dict[str, int] = {}
        self._news: dict[str, int] = {}

    @property
    def has_free(self) -> bool:
        """Whether a retention that begins gets a word."""
        return bool(self._free)

    def take(self, name: str) -> Word | None:
        """The word of a retention that begins; None if all slots are taken."""
        if not self._free:
            return None
        slot = self._free.popleft()
        self._taken[name] = self._news[name] = slot
        return Word(
            slot=slot,
            slots=self._slots,
            places={
                rank: WordPlace(table=address, value=(start + self._ends[slot]) % _MODULUS)
                for rank, (address, start) in self._tables.items()
            },
        )

    def end(self, name: str) -> None:
        """All ranks reported a retention as over; unknown ones have no word."""
        slot = self._taken.pop(name, None)
        if slot is not None:
            self._ends[slot] += 1
            self._free.append(slot)

    def take_news(self) -> Mapping[str, int]:
        """Slots given out since the last call, for the workers."""
        if not self._news:
            return {}
        news, self._news = self._news, {}
        return news


def tables_of(handshakes: Mapping[Any, Any]) -> dict[tuple[int, int], tuple[int, int]] | None:
    """The tables that the ranks' handshake messages tell of; None if one tells of none."""
    tables: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, message in handshakes.items():
        told = getattr(message, "kvplane_words", None)
        if not told:
            return None
        address, start = told
        tables[rank_of(rank)] = (address, start)
    return tables or None
