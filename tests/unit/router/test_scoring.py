import pytest

from kvplane_services.engine.model import ConnectorKind, Engine, EngineState, Role
from kvplane_services.router.config import Weights
from kvplane_services.router.model import LegKind
from kvplane_services.router.scoring import LegQuestion, Ranked, best, rank, rejection
from tests.unit.router.fleet import decode, engine, prefill


def ranked(
    leg: LegKind, *engines: Engine, busy: dict[str, int] | None = None, holder: str = ""
) -> list[Ranked]:
    counts = busy or {}
    return list(
        rank(
            engines,
            LegQuestion(leg=leg, model="m", holder=holder),
            weights=Weights(),
            in_flight=lambda name, _: counts.get(name, 0),
        )
    )


@pytest.mark.parametrize(
    ("candidate", "question", "words"),
    [
        (decode(), LegQuestion(leg=LegKind.DECODE, model="m"), ""),
        (
            decode(),
            LegQuestion(leg=LegKind.DECODE, model="m", excluded={"engines/d"}),
            "excluded by the caller",
        ),
        (decode(), LegQuestion(leg=LegKind.DECODE, model="x"), "serves m, not x"),
        (
            decode(state=EngineState.LOST),
            LegQuestion(leg=LegKind.DECODE, model="m"),
            "lost: it missed its heartbeat deadline",
        ),
        (
            decode(state=EngineState.DRAINING),
            LegQuestion(leg=LegKind.DECODE, model="m"),
            "draining: it takes no new turns",
        ),
        (
            prefill(connector=ConnectorKind.STOCK),
            LegQuestion(leg=LegKind.PREFILL, model="m", partners=(decode(),)),
            "runs the stock connector, engines/d the kvplane one",
        ),
        (
            prefill(block_size=128),
            LegQuestion(leg=LegKind.PREFILL, model="m", partners=(decode(),)),
            "block_size is 128, that of engines/d 16",
        ),
        (
            prefill(vllm="0.31.0"),
            LegQuestion(leg=LegKind.PREFILL, model="m", partners=(decode(),)),
            "vLLM is 0.31.0, that of engines/d 0.32.0",
        ),
        (
            prefill(vllm=""),
            LegQuestion(leg=LegKind.PREFILL, model="m", partners=(decode(),)),
            "",
        ),
        (
            engine("d", Role.BOTH),
            LegQuestion(leg=LegKind.PREFILL, model="m", partners=(decode(),)),
            "runs the other leg of this turn",
        ),
    ],
)
def test_rejections(candidate: Engine, question: LegQuestion, words: str) -> None:
    """Each filter says in words why an engine cannot run the leg."""
    assert rejection(candidate, question) == words


def test_holder_comes_first_however_busy() -> None:
    """The engine that holds the session outranks an idle one."""
    busy = decode("d", waiting=50, retained=100)
    order = ranked(LegKind.DECODE, decode("e"), busy, busy={"engines/d": 100}, holder="engines/d")
    assert [one.engine.engine_id for one in order] == ["d", "e"]


@pytest.mark.parametrize(
    ("first", "second", "busy"),
    [
        (decode("e"), decode("d"), {"engines/d": 1}),
        (decode("e"), decode("d", waiting=1), {}),
        (decode("e"), decode("d", retained=50), {}),
    ],
)
def test_less_loaded_decode_engine_comes_first(
    first: Engine, second: Engine, busy: dict[str, int]
) -> None:
    """Fewer turns in flight, fewer waiting requests and more room each rank higher."""
    order = ranked(LegKind.DECODE, second, first, busy=busy)
    assert [one.engine for one in order] == [first, second]


def test_prefill_takes_the_least_in_flight() -> None:
    """Prefill engines are ranked by turns in flight."""
    order = ranked(
        LegKind.PREFILL,
        prefill("p"),
        prefill("q"),
        prefill("r"),
        busy={"engines/p": 2, "engines/q": 0, "engines/r": 1},
    )
    assert [one.engine.engine_id for one in order] == ["q", "r", "p"]


def test_roles_decide_who_is_a_candidate() -> None:
    """Only engines whose role fits the leg are ranked; the rejected come last."""
    engines = (prefill(state=EngineState.LOST), decode(), engine("b", Role.BOTH))
    assert [one.engine.engine_id for one in ranked(LegKind.PREFILL, *engines)] == ["b", "p"]
    assert {one.engine.engine_id for one in ranked(LegKind.DECODE, *engines)} == {"d", "b"}
    assert best(ranked(LegKind.PREFILL, engines[0])) is None


def test_equals_are_spread_by_session_and_stable() -> None:
    """Sessions spread over equal engines, and a session always meets the same one."""
    engines = [prefill(f"p{number}") for number in range(4)]

    def choice(session: str) -> str:
        question = LegQuestion(leg=LegKind.PREFILL, model="m", affinity=session)
        order = rank(engines, question, weights=Weights(), in_flight=lambda *_: 0)
        return order[0].engine.engine_id

    chosen = [choice(f"s{number}") for number in range(100)]
    assert chosen == [choice(f"s{number}") for number in range(100)]
    assert all(chosen.count(one.engine_id) > 10 for one in engines)
