import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from kvplane.transfer_params import WORD_KEY, Word, WordPlace
from kvplane_connector.generation_words import (
    SLOTS,
    WordMemory,
    WordSlots,
    WordTable,
    tables_of,
)

START = (1 << 64) - 2
ADDRESS = 0x7F00_0000_1000
ALL = frozenset({"one", "two", "three", "a", "b", "c"})


def slots(count: int = 2) -> WordSlots:
    return WordSlots({(0, 0): (ADDRESS, START), (0, 1): (ADDRESS + 64, 5)}, slots=count)


def table(count: int = 2) -> tuple[WordTable, WordMemory]:
    memory = WordMemory(count + 2)
    return WordTable(memory, slots=count, start=START), memory


def values(word: Word | None) -> list[int]:
    assert word is not None
    return [place.value for place in word.places.values()]


def test_words_lie_where_their_address_says() -> None:
    """Others read them by address, eight bytes each, in the machine's order."""
    made, memory = table()

    made.begin({"one": 1}, alive=ALL)
    made.end(["one"])

    seen = (ctypes.c_uint64 * 2).from_address(made.address)
    assert list(seen) == [START, START + 1] == [memory[0], memory[1]]


def test_words_begin_at_a_number_that_nobody_can_guess() -> None:
    """What another process had in the same place is no value of this one's."""
    memory = WordMemory(2)

    starts = {WordTable(memory, slots=2).start for _ in range(20)}

    assert len(starts) == 20
    assert all(0 <= start < 1 << 63 for start in starts)


def test_a_word_changes_when_its_retention_is_over() -> None:
    """That of another does not, nor a second time, and numbers past the largest go on at zero."""
    made, memory = table()
    made.begin({"one": 0, "two": 1}, alive=ALL)

    made.end(["one", "unknown"])
    made.end(["one"])
    assert [memory[0], memory[1]] == [START + 1, START]

    made.begin({"three": 0}, alive=ALL)
    made.end(["three"])
    assert [memory[0], memory[1]] == [0, START]


def test_a_retention_that_ended_before_its_slot_was_known_changes_it_at_once() -> None:
    """Readers can be done before the worker hears of what it keeps; the word is never left."""
    made, memory = table()

    made.end(["early", *(f"without a word {number}" for number in range(5000))])
    made.begin({"early": 0, "other": 1}, alive={"other"})

    assert [memory[0], memory[1]] == [START + 1, START]
    made.end(["early"])
    assert memory[0] == START + 1


def test_at_the_end_of_the_engine_every_word_changes() -> None:
    """Memory that goes away with the process was promised by none of its words."""
    made, memory = table()
    made.begin({"one": 0}, alive=ALL)

    made.end_all()

    assert [memory[0], memory[1]] == [START + 1, START + 1]


def test_a_handle_names_the_value_that_the_worker_has() -> None:
    """Both halves count the ends of a slot, and no message tells one of the other."""
    made, memory = table(1)
    book = slots(1)

    for turn in ("a", "b", "c"):
        word = book.take(turn)
        made.begin(book.take_news(), alive=ALL)
        assert values(word)[0] == memory[0]
        made.end([turn])
        assert values(word)[0] != memory[0]
        book.end(turn)

    assert memory[0] == (START + 3) % (1 << 64)


def test_a_slot_is_given_again_only_after_all_ranks_reported_its_end() -> None:
    """Until then its word may still say that the blocks are kept."""
    book = slots(2)
    first, second = book.take("one"), book.take("two")
    assert (first, second) != (None, None)
    assert book.take("three") is None

    book.end("one")
    book.end("never begun")

    third = book.take("three")
    assert third is not None
    assert first is not None
    assert third.slot == first.slot
    assert values(third) == [value + 1 for value in values(first)]


def test_workers_hear_of_each_slot_once() -> None:
    """Slots travel with the next step's orders."""
    book = slots(2)
    book.take("one")

    assert book.take_news() == {"one": 0}
    assert book.take_news() == {}


def test_ranks_without_words_leave_an_engine_without() -> None:
    """A word counts only if every rank that can be read has one."""
    with_words = SimpleNamespace(kvplane_words=(ADDRESS, 7))
    plain = SimpleNamespace()

    assert tables_of({(0, 0): with_words, (0, 1): with_words}) == {
        (0, 0): (ADDRESS, 7),
        (0, 1): (ADDRESS, 7),
    }
    assert tables_of({0: with_words}) == {(0, 0): (ADDRESS, 7)}
    assert tables_of({(0, 0): with_words, (0, 1): plain}) is None
    assert tables_of({}) is None


def test_a_word_comes_out_of_a_handle_as_it_went_in() -> None:
    """Its numbers are text, which no JSON reader rounds."""
    word = slots().take("one")
    assert word is not None

    encoded = word.encode()

    assert encoded["ranks"]["0-0"] == [hex(ADDRESS), hex(START)]
    assert Word.decode({WORD_KEY: encoded}) == word


def _broken(**changed: Any) -> dict[str, Any]:
    return {"slot": 1, "slots": 4, "ranks": {"0-0": ["0x10", "0x5"]}, **changed}


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        _broken(slot=4),
        _broken(slot=-1),
        _broken(slot=True),
        _broken(slots=1 << 40),
        _broken(slots=SLOTS + 1),
        _broken(ranks={}),
        _broken(ranks={"0": ["0x10", "0x5"]}),
        _broken(ranks={"0-0": ["0x10"]}),
        _broken(ranks={"0-0": [16, 5]}),
        _broken(ranks={"0-0": ["0x0", "0x5"]}),
        _broken(ranks={"0-0": ["0x10", "-0x5"]}),
        _broken(ranks={"0-0": ["0x10", "0x10000000000000000"]}),
    ],
)
def test_a_broken_word_is_none(value: Any) -> None:
    """A handle whose word does not make sense is one without."""
    assert Word.decode({WORD_KEY: value}) is None
    assert Word.decode({WORD_KEY: _broken()}) == Word(1, 4, {(0, 0): WordPlace(16, 5)})
