from collections import defaultdict
from typing import Any

import pytest

from kvplane.transfer_params import Word, WordPlace
from kvplane_connector.generation_words import WordMemory
from kvplane_connector.validated_reads import Source, ValidatedReads, Verdict
from tests.support.fake_nixl import FakeNixl, Transfer

TABLE, SLOT, VALUE = 0x1000, 3, 77
PLACE = TABLE + 8 * SLOT
WORD = Word(SLOT, 8, {(0, 0): WordPlace(TABLE, VALUE), (0, 1): WordPlace(TABLE * 2, VALUE + 1)})
FIRST, SECOND = Source("owner", 0, "agent-0"), Source("owner", 1, "agent-1")
LANDING = 4


class _Clock:
    """Goes on by 50 us whenever it is looked at."""

    def __init__(self) -> None:
        self.seconds = 10.0

    def now(self) -> float:
        self.seconds += 50e-6
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a step of the engine waits for nobody")


@pytest.fixture
def nixl() -> FakeNixl:
    return FakeNixl(words={PLACE: VALUE, TABLE * 2 + 8 * SLOT: VALUE + 1})


@pytest.fixture
def prepared() -> dict[str, dict[Any, Any]]:
    return defaultdict(dict)


@pytest.fixture
def reads(nixl: FakeNixl, prepared: dict[str, dict[Any, Any]]) -> ValidatedReads:
    memory = WordMemory(8 + LANDING)
    return ValidatedReads(nixl=nixl, memory=memory, first=8, prepared=prepared, clock=_Clock())


def never(_: Transfer) -> str:
    return "PROC"


def test_a_read_whose_word_is_as_it_was_is_accepted(nixl: FakeNixl, reads: ValidatedReads) -> None:
    """One look at the word, in the same step, and nothing of it is left."""
    reads.began("r", WORD, FIRST)
    transfers: dict[str, list[Any]] = {}

    assert reads.check("r", transfers) is Verdict.ACCEPTED

    assert transfers == {}
    assert [one.released for one in nixl.transfers] == [True]
    assert (len(reads.names), reads.free_words) == (0, LANDING)
    assert 0 < reads.seconds < 1e-3


def test_a_read_whose_word_has_changed_is_refused(nixl: FakeNixl, reads: ValidatedReads) -> None:
    """The blocks were given up, before or after they were read: nobody can tell."""
    nixl.words[PLACE] += 1
    reads.began("r", WORD, FIRST)

    assert reads.check("r", {}) is Verdict.REFUSED
    assert reads.free_words == LANDING


@pytest.mark.parametrize("changed", [0, 1])
def test_every_rank_that_was_read_has_its_say(
    nixl: FakeNixl, reads: ValidatedReads, changed: int
) -> None:
    """One rank that gave its blocks up is enough to refuse, whatever the others say."""
    for source in (FIRST, SECOND, FIRST):
        reads.began("good", WORD, source)
        reads.began("bad", WORD, source)

    assert reads.check("good", {}) is Verdict.ACCEPTED
    assert [one.begun for one in nixl.transfers] == [True, False, True, False]
    nixl.words[TABLE * (changed + 1) + 8 * SLOT] += 1
    assert reads.check("bad", {}) is Verdict.REFUSED


def test_ranks_that_were_not_read_have_none(nixl: FakeNixl, reads: ValidatedReads) -> None:
    """Some are only told; they may give their blocks up as soon as they hear of it."""
    nixl.words[TABLE * 2 + 8 * SLOT] += 1
    reads.began("r", WORD, FIRST)

    assert reads.check("r", {}) is Verdict.ACCEPTED


def test_a_slow_word_is_left_to_later_steps(nixl: FakeNixl, reads: ValidatedReads) -> None:
    """Its transfer stands among the request's own, and the verdict comes when that is over."""
    nixl.ends = never
    reads.began("r", WORD, FIRST)
    transfers: dict[str, list[Any]] = {}

    assert reads.check("r", transfers) is Verdict.PENDING
    (left,) = transfers.pop("r")
    assert not left.released
    assert reads.free_words == LANDING - 1

    nixl.ends = lambda _: "DONE"
    nixl.check_xfer_state(left)
    assert reads.check("r", transfers) is Verdict.ACCEPTED
    assert reads.free_words == LANDING


def test_a_word_that_did_not_arrive_is_not_taken_for_the_value(
    nixl: FakeNixl, reads: ValidatedReads
) -> None:
    """A transfer that says it is over and wrote nothing refuses the read."""
    for _ in range(2 * LANDING):
        reads.began("before", WORD, FIRST)
        assert reads.check("before", {}) is Verdict.ACCEPTED
    nixl.ends = never
    reads.began("r", WORD, FIRST)
    transfers: dict[str, list[Any]] = {}
    reads.check("r", transfers)

    assert reads.check("r", transfers) is Verdict.REFUSED


@pytest.mark.parametrize("failing", ["make_prepped_xfer", "transfer", "prep agent-1"])
def test_a_word_that_cannot_be_read_fails_the_read(
    nixl: FakeNixl, reads: ValidatedReads, failing: str
) -> None:
    """What is on its way meanwhile stays with vLLM until it is over; no word is lost."""
    nixl.ends = never
    nixl.fails = {failing}
    reads.began("r", WORD, FIRST)
    reads.began("r", WORD, SECOND)
    transfers: dict[str, list[Any]] = {}

    assert reads.check("r", transfers) is Verdict.BROKEN

    assert ("r" in transfers) == (failing == "transfer")
    if "r" in transfers:
        assert reads.free_words < LANDING
        reads.forget("r")
    assert reads.free_words == LANDING
    assert not reads.names
    assert all(one.released for one in nixl.transfers if transfers.get("r") != [one])


def test_a_handle_without_the_word_of_a_rank_that_was_read_fails_it(
    reads: ValidatedReads,
) -> None:
    """A word says nothing of another rank."""
    reads.began("r", WORD, Source("owner", 2, "agent-2"))

    assert reads.check("r", {}) is Verdict.BROKEN


def test_more_reads_than_words_wait_for_a_word(nixl: FakeNixl, reads: ValidatedReads) -> None:
    """They are looked at again in the next step, as reads that are over."""
    nixl.ends = never
    names = [f"r{number}" for number in range(LANDING + 1)]
    transfers: dict[str, list[Any]] = {}
    for name in names:
        reads.began(name, WORD, FIRST)
        assert reads.check(name, transfers) is Verdict.PENDING
    assert transfers[names[-1]] == []

    nixl.ends = lambda _: "DONE"
    nixl.check_xfer_state(transfers[names[0]][0])
    assert reads.check(names[0], transfers) is Verdict.ACCEPTED
    assert reads.check(names[-1], transfers) is Verdict.ACCEPTED


def test_a_word_is_prepared_with_its_data_and_not_asked_for(
    nixl: FakeNixl, reads: ValidatedReads
) -> None:
    """Only a read whose data is there looks at it; of one that failed before nothing is left."""
    reads.began("r", WORD, FIRST)

    (word,) = nixl.transfers
    assert not word.begun

    reads.forget("r")
    assert word.released
    assert not word.begun
    assert reads.free_words == LANDING


def test_a_transfer_that_nixl_does_not_release_ends_no_step(
    nixl: FakeNixl, reads: ValidatedReads
) -> None:
    """What it would land in is not used again; the others of the same read are."""
    reads.began("r", WORD, FIRST)
    nixl.fails = {"release"}

    reads.forget("r")

    assert not reads.names
    assert reads.free_words == LANDING - 1
    nixl.fails = set()
    reads.began("next", WORD, FIRST)
    assert reads.check("next", {}) is Verdict.ACCEPTED
    assert reads.free_words == LANDING - 1


def test_descriptors_are_prepared_once_for_each_rank(
    nixl: FakeNixl, reads: ValidatedReads, prepared: dict[str, dict[Any, Any]]
) -> None:
    """They stand among vLLM's, which are released when the engine is forgotten."""
    for number in range(5):
        reads.began(f"r{number}", WORD, FIRST)
        reads.began(f"r{number}", WORD, SECOND)
        reads.check(f"r{number}", {})

    assert len(prepared["owner"]) == 2
    assert len(nixl.lists) == 3
    assert [len(one) for one in nixl.lists] == [LANDING, 8, 8]
    reads.close()
    assert nixl.released_lists == [0]


def test_a_rank_has_no_more_tables_than_a_few(
    nixl: FakeNixl, reads: ValidatedReads, prepared: dict[str, dict[Any, Any]]
) -> None:
    """Each costs a list that stays as long as the engine; handles can say any number of them."""
    verdicts: list[Verdict] = []
    for number in range(20):
        table = TABLE + 0x100 * number
        nixl.words[table + 8 * SLOT] = VALUE
        reads.began("r", Word(SLOT, 8, {(0, 0): WordPlace(table, VALUE)}), FIRST)
        verdicts.append(reads.check("r", {}))

    assert verdicts.count(Verdict.ACCEPTED) == 4
    assert verdicts.count(Verdict.BROKEN) == 16
    assert len(prepared["owner"]) == 4
    reads.began("r", WORD, FIRST)
    assert reads.check("r", {}) is Verdict.ACCEPTED
