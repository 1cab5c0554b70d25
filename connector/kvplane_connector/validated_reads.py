"""The reader's side of generation words: whether what was read was still kept when it was.

Once all data of a request has arrived, and not before, the owner's word is read from each rank that
was read. The order is the whole proof: a word that still has its value was not changed when
it was read, so nothing that its owner did after changing it, such as giving the blocks away,
had happened when the data was read. Neither clocks nor speed matter. It holds for transports
whose reads are over when they say so; see `generation_words.BACKENDS`.

Descriptors are prepared once for each pair of ranks, and the transfer of a word, which is an
index into either side's, while the data is on its way: what is left to do for a step that waits for
the word is to post it.
"""

import enum
import logging
from collections.abc import MutableMapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from kvplane.client.clock import Clock
from kvplane.transfer_params import Word, WordPlace
from kvplane_connector.generation_words import WORD_BYTES, WordMemory

_log = logging.getLogger(__name__)

# Words of the owner's that can be on their way to us at once.
LANDING_WORDS = 1024
# A word is mostly there sooner; one that is not is looked for in the next step.
_PATIENCE = 200e-6
# A rank has one table; handles come with requests, and may say anything.
_MOST_TABLES = 4
_ALL_ONES = (1 << 64) - 1


class Verdict(enum.Enum):
    """What is known of a read whose data has arrived."""

    PENDING = "its words are on their way"
    ACCEPTED = "its blocks were kept until it was over"
    REFUSED = "its blocks may have been given away before it was over"
    BROKEN = "its words could not be read"


@dataclass(frozen=True, slots=True)
class Source:
    """A rank of another engine, as vLLM numbers and NIXL names it."""

    engine_id: str
    rank: int
    agent: str


@dataclass(slots=True)
class _Fetch:
    """A word to come.

    Attributes:
        source: From which rank.
        place: What it is while the blocks are kept, and where.
        index: The word of ours that it lands in.
        transfer: NIXL's.

    """

    source: Source
    place: WordPlace
    index: int
    transfer: Any


@dataclass(slots=True)
class _Read:
    word: Word
    sources: list[Source] = field(default_factory=list[Source])
    fetches: list[_Fetch] = field(default_factory=list[_Fetch])
    posted: int = 0
    posted_at: float | None = None
    broken: bool = False


class ValidatedReads:
    """The reads under way that end with a look at their owners' words.

    Args:
        nixl: vLLM's NIXL agent.
        memory: Registered with it; words land from its `first` word on.
        first: See `memory`.
        prepared: vLLM's prepared descriptors by engine, which it releases with the engine.
        clock: Time.

    Attributes:
        seconds: What the last verdict took, from the arrival of the data on.

    """

    def __init__(
        self,
        *,
        nixl: Any,
        memory: WordMemory,
        first: int,
        prepared: MutableMapping[str, dict[Any, Any]],
        clock: Clock,
    ) -> None:
        self._make_transfer = nixl.make_prepped_xfer
        self._nixl = nixl
        self._memory = memory
        self._prepared = prepared
        self._clock = clock
        self._first = first
        words = len(memory) - first
        self._free = list(range(words))
        self._landing = self._list_of("NIXL_INIT_AGENT", memory.address + WORD_BYTES * first, words)
        self._reads: dict[str, _Read] = {}
        self.seconds = 0.0

    @property
    def names(self) -> AbstractSet[str]:
        """The requests whose reads are under way."""
        return self._reads.keys()

    @property
    def free_words(self) -> int:
        """Words that nothing is on its way to."""
        return len(self._free)

    def began(self, name: str, word: Word, source: Source) -> None:
        """Data of this rank is being read for a request."""
        read = self._reads.setdefault(name, _Read(word))
        if source not in read.sources:
            read.sources.append(source)
            self._prepare(name, read)

    def check(self, name: str, transfers: MutableMapping[str, list[Any]]) -> Verdict:
        """A verdict on a read whose transfers are all over. The read is forgotten with it.

        While words are on their way their transfers stand in `transfers` in the data's place:
        what vLLM does with a request that is still being read is right for it, too.
        """
        read = self._reads[name]
        if read.posted_at is None:
            self._prepare(name, read)
            if not read.broken and len(read.fetches) < len(read.sources):
                # No word of ours is free. Without a transfer the next poll finds it done again.
                transfers[name] = []
                return Verdict.PENDING
            if outstanding := self._post(name, read):
                transfers[name] = outstanding
                return Verdict.BROKEN if read.broken else Verdict.PENDING
        posted_at = read.posted_at
        if read.broken or posted_at is None:
            self.forget(name)
            return Verdict.BROKEN
        kept = all(self._memory[self._first + one.index] == one.place.value for one in read.fetches)
        self.seconds = self._clock.now() - posted_at
        self.forget(name)
        return Verdict.ACCEPTED if kept else Verdict.REFUSED

    def forget(self, name: str) -> None:
        """A request is over, whatever became of it; what was posted for it has been released."""
        read = self._reads.pop(name, None)
        if read is None:
            return
        self._free.extend(one.index for one in read.fetches[: read.posted])
        for one in read.fetches[read.posted :]:
            try:
                self._nixl.release_xfer_handle(one.transfer)
            except Exception as error:  # noqa: BLE001 - NIXL's errors have no common class
                # Its word of ours is not used again: who knows what NIXL still does with it.
                _log.warning("a word's transfer for %s cannot be released: %r", name, error)
            else:
                self._free.append(one.index)

    def close(self) -> None:
        """Releases what vLLM does not know of."""
        for name in list(self._reads):
            self.forget(name)
        self._nixl.release_dlist_handle(self._landing)

    def _post(self, name: str, read: _Read) -> list[Any]:
        """Has a read's words sent; returns the transfers that are not over yet."""
        read.posted_at = self._clock.now()
        outstanding: list[Any] = []
        try:
            for one in () if read.broken else read.fetches:
                read.posted += 1
                outstanding.append(one.transfer)
                if self._nixl.transfer(one.transfer) == "DONE":
                    self._nixl.release_xfer_handle(outstanding.pop())
            while outstanding and self._clock.now() - read.posted_at < _PATIENCE:
                if self._nixl.check_xfer_state(outstanding[-1]) == "DONE":
                    self._nixl.release_xfer_handle(outstanding.pop())
        except Exception as error:  # noqa: BLE001 - NIXL's errors have no common class
            self._break(name, read, error)
        return outstanding

    def _prepare(self, name: str, read: _Read) -> None:
        """Makes the transfers of a read's words, as far as words of ours are free for them."""
        try:
            for source in read.sources[len(read.fetches) :]:
                if read.broken or not self._free:
                    return
                read.fetches.append(self._fetch_of(read.word, source))
        except Exception as error:  # noqa: BLE001 - NIXL's errors have no common class
            self._break(name, read, error)

    def _fetch_of(self, word: Word, source: Source) -> _Fetch:
        place = word.places.get((0, source.rank))
        if place is None:
            raise ValueError(f"the handle has no word of rank {source.rank}")
        prepared = self._prepared[source.engine_id]
        # Beside vLLM's own, whose keys are ranks.
        key = ("kvplane", source.rank, place.table, word.slots)
        if key not in prepared:
            # They are released with the engine alone.
            if (
                sum(one[:2] == key[:2] for one in prepared if isinstance(one, tuple))
                >= _MOST_TABLES
            ):
                raise ValueError(f"one table too many is said to be rank {source.rank}'s")
            prepared[key] = self._list_of(source.agent, place.table, word.slots)
        index = self._free[-1]
        # Nothing that fails to arrive can be taken for the value.
        self._memory[self._first + index] = place.value ^ _ALL_ONES
        transfer = self._make_transfer("READ", self._landing, [index], prepared[key], [word.slot])
        self._free.pop()
        return _Fetch(source, place, index, transfer)

    def _break(self, name: str, read: _Read, error: Exception) -> None:
        _log.warning("the words of what was read for %s cannot be read: %r", name, error)
        read.broken = True

    def _list_of(self, agent: str, address: int, words: int) -> Any:
        places = [(address + WORD_BYTES * word, WORD_BYTES, 0) for word in range(words)]
        return self._nixl.prep_xfer_dlist(agent, self._nixl.get_xfer_descs(places, "DRAM"))
