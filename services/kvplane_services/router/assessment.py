"""Everything that a decision weighs for one turn, from the view as it is. No effects."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kvplane_services.engine.model import Engine
from kvplane_services.errors import NotFound, Unavailable
from kvplane_services.router.config import RouterConfig
from kvplane_services.router.inflight import InFlight
from kvplane_services.router.legs import read_handle
from kvplane_services.router.model import LegKind
from kvplane_services.router.recognition import Recognised
from kvplane_services.router.scoring import LegQuestion, Ranked, best, rank
from kvplane_services.router.strategy import Situation
from kvplane_services.router.view import RouterView

# Engines named in an error; a large fleet does not make a large message.
_ENGINES_NAMED = 5


@dataclass(frozen=True, slots=True)
class Assessment:
    """Engines ranked for each leg, and what the choice of a strategy depends on.

    `readers` ranks prefill engines for reading the session's retention; `situation` is None
    if no engine can decode.
    """

    decodes: Sequence[Ranked]
    prefills: Sequence[Ranked]
    readers: Sequence[Ranked]
    situation: Situation | None


def assess(
    session: Recognised,
    engines: Iterable[Engine],
    *,
    view: RouterView,
    in_flight: InFlight,
    config: RouterConfig,
    excluded: AbstractSet[str] = frozenset(),
    history_digest: bytes = b"",
) -> Assessment:
    """Ranks `engines` for the legs of a turn."""
    engines = tuple(engines)
    key = session.key
    lease = view.live_lease(session.source)
    holder = view.engine(lease.engine) if lease is not None else None

    def ranked(leg: LegKind, *partners: Engine) -> Sequence[Ranked]:
        question = LegQuestion(
            leg=leg,
            model=key.model,
            excluded=excluded,
            holder=lease.engine if lease is not None else "",
            partners=partners,
            affinity=f"{key.tenant}\0{key.session_id}",
        )
        return rank(engines, question, weights=config.weights, in_flight=in_flight.count)

    decodes = ranked(LegKind.DECODE)
    decode = best(decodes)
    if decode is None:
        return Assessment(decodes, ranked(LegKind.PREFILL), (), None)
    prefills = ranked(LegKind.PREFILL, decode)
    readers = prefills
    if holder is not None and holder.name != decode.name:
        readers = ranked(LegKind.PREFILL, decode, holder)
    situation = Situation(
        decode=decode,
        prefill=best(prefills),
        no_prefill=_no_prefill(key.model, prefills),
        lease=lease,
        ended=view.ended_lease(session.source) if lease is None else None,
        holder=holder,
        handle=read_handle(lease) if lease is not None else None,
        holder_excluded=lease is not None and lease.engine in excluded,
        reader=best(readers),
        no_reader=_rejections(readers),
        min_pull_tokens=config.min_pull_tokens,
        history_digest=history_digest,
    )
    return Assessment(decodes, prefills, readers, situation)


def cannot_decode(
    model: str, decodes: Sequence[Ranked], *, view: RouterView, config: RouterConfig
) -> NotFound | Unavailable:
    """Why no engine can take a turn, and what to do."""
    if not view.ever_served(model):
        if not view.synced:
            return Unavailable(
                "this router has not received the engines yet; retry, and check that the "
                "lease manager runs if this goes on",
                retry_after=config.retry_after,
            )
        served = ", ".join(view.served_models())
        if view.settling and not view.any_alive:
            return Unavailable(
                "no engine has registered since this router started: retry if some are running, "
                "else start one",
                retry_after=config.retry_after,
                model=model,
            )
        return NotFound(
            f"no engine serves the model {model!r}; "
            + (f"served: {served}" if served else "no engine is registered, start one"),
            model=model,
        )
    serving = [one for one in decodes if model in one.engine.models]
    if not serving:
        words = f"no decode engine serves {model!r} at the moment"
    else:
        words = f"no engine can decode a turn of {model!r} now: {_rejections(serving)}"
    return Unavailable(
        f"{words}. Start or resume one (`kvplane engines list` shows all), then retry",
        retry_after=config.retry_after,
        model=model,
    )


def _no_prefill(model: str, prefills: Sequence[Ranked]) -> str:
    serving = [one for one in prefills if model in one.engine.models]
    if not serving:
        return f"no prefill engine serves {model!r}"
    return f"no prefill engine can take the turn: {_rejections(serving)}"


def _rejections(ranked: Sequence[Ranked]) -> str:
    rejected = [one.candidate for one in ranked if one.candidate.rejection]
    words = [f"{one.engine}: {one.rejection}" for one in rejected[:_ENGINES_NAMED]]
    if len(rejected) > _ENGINES_NAMED:
        words.append(f"and {len(rejected) - _ENGINES_NAMED} more")
    return "; ".join(words) or "there is none"
