from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvplane.client.retention import EndReason, Renew
from kvplane.transfer_params import KEY
from kvplane_connector.engine_stops import heed_stops
from kvplane_connector.retentions import NO_EXPIRY, RetentionLedger
from tests.unit.connector.conftest import new_scheduler
from tests.unit.connector.test_retentions import ledger, reported, retained


class Core:
    """As much of vLLM's engine core as stops are about."""

    def __init__(self, connector: Any) -> None:
        self.running = True
        self.to_pause = 0
        self.scheduler = SimpleNamespace(get_kv_connector=lambda: connector, pause_state=0)

    def is_running(self) -> bool:
        return self.running

    def _process_input_queue(self) -> str:
        self.scheduler.pause_state = self.to_pause
        return "taken"

    def before_step(self) -> str:
        return self._process_input_queue()


class Connector:
    """Counts what it is told."""

    told = 0

    def give_up_retentions(self) -> None:
        self.told += 1


@pytest.fixture
def core_class() -> Any:
    """An amended class of a test's own."""
    made = type("EngineCoreProc", (Core,), {})
    assert heed_stops(made)
    assert heed_stops(made)
    return made


def test_a_connector_hears_of_a_pause_before_the_next_step(core_class: Any) -> None:
    """And as long as it lasts, for what finishes meanwhile."""
    connector = Connector()
    core = core_class(connector)
    assert core.before_step() == "taken"
    assert connector.told == 0

    core.to_pause = 1
    core.before_step()
    core.before_step()
    assert connector.told == 2

    core.to_pause = 0
    core.before_step()
    assert connector.told == 2


def test_a_connector_hears_of_a_shutdown(core_class: Any) -> None:
    """vLLM then serves what runs, and waits for nothing that is only retained."""
    connector = Connector()
    core = core_class(connector)

    core.running = False
    core.before_step()

    assert connector.told == 1


@pytest.mark.parametrize("connector", [None, object()])
def test_other_connectors_are_left_alone(core_class: Any, connector: Any) -> None:
    """An engine core without ours pauses as it did."""
    core = core_class(connector)
    core.to_pause = 2

    assert core.before_step() == "taken"


def test_another_vllm_is_left_as_it_is() -> None:
    """It may have no such loop."""
    assert not heed_stops(object)


def test_what_can_go_at_once_goes_and_is_not_renewed() -> None:
    """The rest goes when its handle says, however often the plane renews it."""
    book = ledger()
    book.begin(retained("word", has_word=True))
    book.begin(retained("promised", expiry=130.0, blocks=range(3, 6)))
    book.apply([Renew("promised", "leases/l", 1, 60.0)], sent_at=100.0)
    book.take_orders()
    reported(book)

    assert not book.give_up_all()
    book.apply([Renew(name, "leases/l", 1, 60.0) for name in ("word", "promised")], sent_at=110.0)

    assert book.take_releases() == {"word"}
    assert book.take_orders() == {"promised": 130.0}
    assert not book.give_up_all()
    assert (book.take_releases(), book.take_orders()) == (frozenset(), {})
    assert book.end("word")
    assert book.end("promised")
    assert book.give_up_all()
    assert {reason for _, reason in book.changes().ended} == {EndReason.RECLAIMED}


def test_a_reset_of_the_cache_is_done_when_nothing_is_retained(
    connector: Callable[[str], Any],
) -> None:
    """What was computed with other weights is offered to nobody any longer."""
    book = RetentionLedger(ttl=20.0, clamp_ttl=lambda ttl: ttl)
    scheduler = new_scheduler(connector, book)
    assert scheduler.give_up_retentions()
    book.begin(retained("r1", expiry=NO_EXPIRY, has_word=True))

    assert not scheduler.give_up_retentions()

    meta = scheduler.build_connector_meta(
        SimpleNamespace(num_scheduled_tokens={}, finished_req_ids=())
    )
    assert getattr(meta, KEY).release == {"r1"}
    scheduler.update_connector_output(SimpleNamespace(finished_sending={"r1"}))
    assert scheduler.give_up_retentions()
