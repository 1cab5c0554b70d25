import uuid

import pytest

from kvplane_services.errors import InvalidRequest
from kvplane_services.store.requests import RequestMemory


def new_id() -> str:
    return str(uuid.uuid4())


def test_a_retry_returns_the_first_answer() -> None:
    """The same id and request find the answer of the first call."""
    memory: RequestMemory[str] = RequestMemory()
    request_id = new_id()
    memory.remember(request_id, "asked", "first", now=0.0)

    assert memory.find(request_id, "asked", now=1.0) == "first"


def test_without_an_id_nothing_is_remembered() -> None:
    """Calls that carry no id are all new."""
    memory: RequestMemory[str] = RequestMemory()
    memory.remember("", "asked", "first", now=0.0)

    assert memory.find("", "asked", now=0.0) is None


def test_an_id_is_good_for_one_request() -> None:
    """An id that comes back with another request is refused."""
    memory: RequestMemory[str] = RequestMemory()
    request_id = new_id()
    memory.remember(request_id, "asked", "first", now=0.0)

    with pytest.raises(InvalidRequest):
        memory.find(request_id, "asked otherwise", now=0.0)


def test_an_id_is_a_uuid() -> None:
    """Anything else is refused: it would be too easy to repeat by accident."""
    memory: RequestMemory[str] = RequestMemory()

    with pytest.raises(InvalidRequest):
        memory.find("1", "asked", now=0.0)


def test_answers_are_forgotten_after_a_while() -> None:
    """An answer is kept for its time."""
    memory: RequestMemory[str] = RequestMemory(keep=10.0)
    request_id = new_id()
    memory.remember(request_id, "asked", "first", now=0.0)

    assert memory.find(request_id, "asked", now=9.9) == "first"
    assert memory.find(request_id, "asked", now=10.0) is None


def test_the_number_of_answers_is_bounded() -> None:
    """The oldest answer makes room for a new one."""
    memory: RequestMemory[str] = RequestMemory(limit=2)
    ids = [new_id() for _ in range(3)]
    for request_id in ids:
        memory.remember(request_id, "asked", request_id, now=0.0)

    assert [None, ids[1], ids[2]] == [memory.find(each, "asked", now=0.0) for each in ids]


def test_a_forgotten_answer_is_asked_for_anew() -> None:
    """A call that came to nothing can be made again under its id."""
    memory: RequestMemory[str] = RequestMemory()
    request_id = new_id()
    memory.remember(request_id, "asked", "first", now=0.0)

    memory.forget(request_id)

    assert memory.find(request_id, "asked otherwise", now=0.0) is None
