"""Runs under the engines' python: an owner's writes against a reader's reads, by NIXL alone.

The owner changes its word, writes over its data and offers it, again and again without a pause.
The reader takes the newest offer, as a handle, reads the data and then the word, and counts what
it accepts and whether that was all of it what was offered. "correct" is the connector's order;
"late" changes the word after the data is written over, "early" reads it before the data is read.
Prints counts as JSON.

    python word_litmus.py ORDER SECONDS
"""

import json
import mmap
import multiprocessing
import sys
from collections import defaultdict
from typing import Any

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

from kvplane.transfer_params import Word, WordPlace
from kvplane_connector.clock import EngineClock
from kvplane_connector.generation_words import WORD_BYTES, WordMemory, WordTable
from kvplane_connector.validated_reads import Source, ValidatedReads, Verdict

_BYTES = 512 * 1024
_LANDING = 4
_MODULUS = 1 << 64


def own(pipe: Any, order: str) -> None:
    """Writes until it is told to end; the data of writing N is N in every place."""
    agent = nixl_agent("owner", nixl_agent_config(backends=["UCX"]))
    data = np.frombuffer(mmap.mmap(-1, _BYTES), np.uint64)
    # The word, and the number of the writing that is on offer.
    memory = WordMemory(2)
    table = WordTable(memory, slots=1)
    _register(agent, data.ctypes.data, _BYTES)
    _register(agent, memory.address, 2 * WORD_BYTES)
    pipe.send((agent.get_agent_metadata(), data.ctypes.data, table.address, table.start))
    writing = 0
    while not pipe.poll():
        writing += 1
        table.begin({"it": 0}, alive={"it"})
        if order != "late":
            table.end(["it"])
        data.fill(writing)
        if order == "late":
            table.end(["it"])
        memory.publish()
        memory[1] = writing
        memory.publish()
    pipe.recv()


class _Reader:
    def __init__(self, pipe: Any) -> None:
        self._agent = nixl_agent("reader", nixl_agent_config(backends=["UCX"]))
        self._data = np.frombuffer(mmap.mmap(-1, _BYTES), np.uint64)
        self._offer = WordMemory(1)
        memory = WordMemory(_LANDING)
        _register(self._agent, self._data.ctypes.data, _BYTES)
        _register(self._agent, self._offer.address, WORD_BYTES)
        _register(self._agent, memory.address, _LANDING * WORD_BYTES)
        metadata, data, self._table, self._start = pipe.recv()
        owner = self._agent.add_remote_agent(metadata)
        self._source = Source("owner", 0, owner)
        self._here = self._places(
            "NIXL_INIT_AGENT",
            (self._data.ctypes.data, _BYTES),
            (self._offer.address, WORD_BYTES),
        )
        self._there = self._places(owner, (data, _BYTES), (self._table + WORD_BYTES, WORD_BYTES))
        self._reads = ValidatedReads(
            nixl=self._agent,
            memory=memory,
            first=0,
            prepared=defaultdict(dict),
            clock=EngineClock(),
        )

    def offer(self) -> int:
        """The writing that is on offer."""
        self._fetch(1)
        return self._offer[0]

    def is_of(self, writing: int) -> bool:
        """Reads the data; whether all of it is of this writing."""
        self._fetch(0)
        return not (self._data != writing).any()

    def is_kept(self, writing: int) -> bool:
        """Reads the word; whether this writing has not been given up."""
        value = (self._start + writing) % _MODULUS
        self._reads.began("it", Word(0, 1, {(0, 0): WordPlace(self._table, value)}), self._source)
        transfers: dict[str, list[Any]] = {}
        while (verdict := self._reads.check("it", transfers)) is Verdict.PENDING:
            for transfer in transfers.pop("it"):
                self._wait_for(transfer)
        return verdict is Verdict.ACCEPTED

    def _fetch(self, index: int) -> None:
        transfer = self._agent.make_prepped_xfer("READ", self._here, [index], self._there, [index])
        self._agent.transfer(transfer)
        self._wait_for(transfer)

    def _wait_for(self, transfer: Any) -> None:
        while self._agent.check_xfer_state(transfer) != "DONE":
            pass
        self._agent.release_xfer_handle(transfer)

    def _places(self, agent: str, *places: tuple[int, int]) -> Any:
        descriptors = [(address, size, 0) for address, size in places]
        return self._agent.prep_xfer_dlist(agent, self._agent.get_xfer_descs(descriptors, "DRAM"))


def read(pipe: Any, order: str, seconds: float) -> dict[str, int]:
    """Reads for a while; returns what it saw."""
    reader, clock = _Reader(pipe), EngineClock()
    seen = {"reads": 0, "accepted": 0, "other": 0, "other_but_accepted": 0}
    ends = clock.now() + seconds
    while clock.now() < ends:
        if not (writing := reader.offer()):
            continue
        if order == "early":
            accepted = reader.is_kept(writing)
            other = not reader.is_of(writing)
        else:
            other = not reader.is_of(writing)
            accepted = reader.is_kept(writing)
        seen["reads"] += 1
        seen["accepted"] += accepted
        seen["other"] += other
        seen["other_but_accepted"] += other and accepted
    pipe.send("end")
    return seen


def _register(agent: Any, address: int, size: int) -> None:
    places = agent.get_reg_descs([(address, size, 0, "")], "DRAM")
    agent.register_memory(places, backends=["UCX"])


def main() -> None:
    """See the module."""
    order, seconds = sys.argv[1], float(sys.argv[2])
    multiprocessing.set_start_method("spawn")
    ours, theirs = multiprocessing.Pipe()
    owner = multiprocessing.Process(target=own, args=(theirs, order))
    owner.start()
    print(json.dumps(read(ours, order, seconds)))  # noqa: T201 - its result
    owner.join()


if __name__ == "__main__":
    main()
