"""The step loop: order, time, memory, transfers and what stays."""

import pytest

from kvplane.transfer_params import KEY, LOCAL_ONLY, PREFILL_ONLY
from kvplane_services.sim.config import ConnectorRules, EngineShape
from kvplane_services.sim.request import FinishReason, PromptSources, Request, RequestState
from tests.unit.sim.lab import MARK, Lab, LabEngine, Running, finish

PROMPT = list(range(1, 41))
MARKED = {KEY: MARK.encode()}


def _without_cache(blocks: int = 64) -> EngineShape:
    return EngineShape(blocks=blocks, block_size=4, max_model_len=1000, prefix_caching=False)


async def _expected(prompt: list[int], max_tokens: int) -> list[int]:
    """What an engine answers that computes everything by itself."""
    lab = Lab()
    engine = lab.engine("alone")
    async with Running(engine):
        request = engine.submit(prompt, max_tokens=max_tokens)
        await finish(lab.clock, request)
    return request.tokens


async def _turn(
    lab: Lab,
    prefill: LabEngine,
    decode: LabEngine,
    prompt: list[int],
    *,
    handle: dict[str, object] | None = None,
    name: str = "turn",
) -> tuple[Request, Request]:
    """One P/D turn of four tokens, with a handle or without."""
    first = prefill.submit(
        prompt, max_tokens=1, params=dict(handle or PREFILL_ONLY), name=f"{name}-p"
    )
    staged = (await finish(lab.clock, first)).params
    second = decode.submit(prompt, params={**(staged or {}), **MARKED}, name=f"{name}-d")
    await finish(lab.clock, second)
    return first, second


async def test_prefill_and_decode_take_their_time() -> None:
    """A prompt takes tokens / rate, and each further token one decode step."""
    lab = Lab()
    engine = lab.engine("e")
    async with Running(engine):
        request = engine.submit(PROMPT, max_tokens=3)
        await lab.clock.advance(0.0)  # Lets the engine begin.
        await lab.clock.advance(0.039)
        assert request.output_length == 0
        await lab.clock.advance(0.002)
        assert request.output_length == 1
        await lab.clock.advance(0.020)
        assert request.output_length == 3


async def test_long_prompts_are_computed_in_chunks_beside_decodes() -> None:
    """A running reply goes on, slowed, while a long prompt is prefilled step by step."""
    lab = Lab()
    shape = EngineShape(blocks=200, block_size=4, max_model_len=2000, max_batched_tokens=100)
    engine = lab.engine("e", shape=shape)
    async with Running(engine):
        running = engine.submit(PROMPT, max_tokens=50)
        await lab.clock.advance(0.045)
        late = engine.submit(list(range(350)), max_tokens=1)
        before = running.output_length
        await finish(lab.clock, late)
        assert 3 <= running.output_length - before <= 6


async def test_a_request_waits_while_blocks_are_short() -> None:
    """What does not fit waits, in order, and runs once blocks come free."""
    lab = Lab()
    engine = lab.engine("e", shape=_without_cache(12))
    async with Running(engine):
        first = engine.submit(PROMPT, max_tokens=5)
        second = engine.submit(PROMPT, max_tokens=1)
        await lab.clock.advance(0.050)
        assert (engine.scheduler.running, engine.scheduler.waiting) == (1, 1)
        await finish(lab.clock, first)
        await finish(lab.clock, second)
    assert engine.pool.used == 0


async def test_a_preempted_request_answers_as_if_nothing_had_happened() -> None:
    """When replies outgrow memory the youngest is computed again, with the same answer."""
    lab = Lab()
    engine = lab.engine("e", shape=_without_cache(20))
    async with Running(engine):
        requests = [engine.submit([*PROMPT[:30], n], max_tokens=30, name=str(n)) for n in (1, 2)]
        for request in requests:
            await finish(lab.clock, request)
    assert b"vllm:num_preemptions_total" in engine.counters.exposition()
    assert any(request.preempted for request in requests)
    for n, request in zip((1, 2), requests, strict=True):
        assert request.tokens == await _expected([*PROMPT[:30], n], 30)


async def test_the_prefix_cache_saves_computing() -> None:
    """A second prompt computes only what follows the full blocks of the first."""
    lab = Lab()
    engine = lab.engine("e")
    async with Running(engine):
        await finish(lab.clock, engine.submit(PROMPT))
        again = engine.submit([*PROMPT, 99])
        await finish(lab.clock, again)
    assert again.sources == PromptSources(computed=1, local_cache=40, external=0)
    assert again.cached_tokens == 40
    assert again.tokens == await _expected([*PROMPT, 99], 4)


async def test_a_turn_travels_from_prefill_to_decode() -> None:
    """D reads the whole prompt from P, P's blocks come free, and D keeps the turn."""
    lab = Lab()
    prefill, decode = lab.engine("p"), lab.engine("d")
    async with Running(prefill, decode):
        _, second = await _turn(lab, prefill, decode, PROMPT)
    assert second.sources == PromptSources(computed=0, local_cache=0, external=40)
    assert second.cached_tokens == 0  # What P had cached; D's own share would always be all.
    assert second.tokens == await _expected(PROMPT, 4)
    assert prefill.pool.used == 0
    assert [one.tokens for one in decode.retentions] == [43]
    assert decode.pool.used == 11


async def test_the_next_turn_pulls_the_history() -> None:
    """P reads exactly the held tokens from D, which keeps them; the answer is that of recompute."""
    lab = Lab()
    prefill = lab.engine("p", shape=_without_cache())
    decode = lab.engine("d")
    async with Running(prefill, decode):
        _, second = await _turn(lab, prefill, decode, PROMPT)
        handle = decode.handle()
        following = [*second.tokens, 7, 8, 9]
        for attempt in ("once", "forked"):
            third, fourth = await _turn(
                lab, prefill, decode, following, handle=handle, name=attempt
            )
            assert third.sources == PromptSources(computed=4, local_cache=0, external=43)
            assert fourth.tokens == await _expected(following, 4)
    assert next(iter(decode.retentions)).reads == 2


@pytest.mark.parametrize("edited_at", [3, 16, 30])
async def test_edited_history_reads_nothing_wrong(edited_at: int) -> None:
    """Of a history edited anywhere only the proved prefix is read, and the answer is right."""
    lab = Lab()
    prefill = lab.engine("p", shape=_without_cache(256))
    decode = lab.engine("d")
    prompt = [n % 200 for n in range(300)]
    async with Running(prefill, decode):
        _, second = await _turn(lab, prefill, decode, prompt)
        edited = [*second.tokens, 7, 8, 9]
        edited[edited_at * 8] += 1
        third, fourth = await _turn(
            lab, prefill, decode, edited, handle=decode.handle(), name="edited"
        )
    assert third.sources is not None
    assert third.sources.external == edited_at * 8 // 64 * 64
    assert fourth.tokens == await _expected(edited, 4)


async def test_the_stock_connector_answers_wrong_on_edited_history() -> None:
    """Without proofs the blocks are read although they hold other tokens: the reply is wrong."""
    lab = Lab()
    rules = ConnectorRules(stock=True)
    prefill = lab.engine("p", shape=_without_cache(), rules=rules)
    decode = lab.engine("d", rules=rules)
    async with Running(prefill, decode):
        first = prefill.submit(PROMPT, max_tokens=1, params=dict(PREFILL_ONLY), name="p1")
        staged = (await finish(lab.clock, first)).params
        second = decode.submit(PROMPT, params=dict(staged or {}), name="d1")
        handle = (await finish(lab.clock, second)).params
        assert handle is not None
        edited = [*second.tokens, 7]
        edited[10] += 1
        third = prefill.submit(edited, max_tokens=4, params=dict(handle), name="p2")
        await finish(lab.clock, third)
    assert third.tokens != await _expected(edited, 4)
    # And the read consumed the blocks.
    assert len(decode.retentions) == 0


@pytest.mark.parametrize("stock", [True, False], ids=["stock", "kvplane"])
async def test_staged_blocks_that_were_given_away_are_not_read(*, stock: bool) -> None:
    """A leg that comes after its blocks' end recomputes; the stock connector answers wrong."""
    lab = Lab()
    rules = ConnectorRules(stock=stock)
    prefill = lab.engine("p", shape=_without_cache(14), rules=rules)
    decode = lab.engine("d", rules=rules)
    async with Running(prefill, decode):
        first = prefill.submit(PROMPT, max_tokens=1, params=dict(PREFILL_ONLY), name="p")
        staged = (await finish(lab.clock, first)).params
        await lab.clock.advance(31.0)
        other = prefill.submit(list(range(100, 145)), max_tokens=5, name="other")
        await finish(lab.clock, other)
        second = decode.submit(PROMPT, params=dict(staged or {}), name="d")
        output = await finish(lab.clock, second)
        again = decode.submit(PROMPT, name="again")
        await finish(lab.clock, again)
    assert output.finish_reason is FinishReason.LENGTH
    right = await _expected(PROMPT, 4)
    assert (second.tokens == right, again.tokens == right) == (not stock, not stock)
    assert prefill.late_reads == (1 if stock else 0)


async def test_what_a_frozen_engine_read_too_late_is_neither_used_nor_shared() -> None:
    """A read that began in time and ended after the expiry has failed: the leg recomputes."""
    lab = Lab()
    prefill = lab.engine("p", shape=_without_cache(14))
    decode = lab.engine("d")
    async with Running(prefill, decode):
        first = prefill.submit(PROMPT, max_tokens=1, params=dict(PREFILL_ONLY), name="p")
        staged = (await finish(lab.clock, first)).params
        decode.reads_take = 32.0
        second = decode.submit(PROMPT, params=dict(staged or {}), name="d")
        await lab.clock.advance(0.05)
        assert second.state is RequestState.TRANSFERRING
        decode.pace.frozen = True
        await lab.clock.advance(31.0)
        await finish(lab.clock, prefill.submit(list(range(100, 145)), max_tokens=5, name="other"))
        await lab.clock.advance(2.0)
        decode.pace.frozen = False
        await finish(lab.clock, second)
        again = decode.submit(PROMPT, name="again")
        await finish(lab.clock, again)
    assert second.tokens == again.tokens == await _expected(PROMPT, 4)
    assert second.sources == PromptSources(computed=40, local_cache=0, external=0)


async def test_a_read_over_a_slow_link_counts_until_the_expiry() -> None:
    """How long a read takes does not matter while the handle's promise lasts, and then it does."""
    for seconds, external in ((28.5, 40), (29.5, 0)):
        lab = Lab()
        prefill, decode = lab.engine("p"), lab.engine("d")
        async with Running(prefill, decode):
            first = prefill.submit(PROMPT, max_tokens=1, params=dict(PREFILL_ONLY), name="p")
            staged = (await finish(lab.clock, first)).params
            decode.reads_take = seconds
            second = decode.submit(PROMPT, params=dict(staged or {}), name="d")
            await finish(lab.clock, second, within=40.0)
        assert second.sources == PromptSources(40 - external, 0, external)
        assert second.tokens == await _expected(PROMPT, 4)


async def test_staged_blocks_without_an_expiry_are_given_back_unread() -> None:
    """A decode leg that is not told until when recomputes, and prefill has its memory back."""
    lab = Lab()
    prefill, decode = lab.engine("p"), lab.engine("d")
    async with Running(prefill, decode):
        first = prefill.submit(PROMPT, max_tokens=1, params=dict(PREFILL_ONLY), name="p")
        staged = dict((await finish(lab.clock, first)).params or {})
        assert staged["remote_blocks_expiry_time"] == pytest.approx(lab.clock.now() + 30, abs=0.1)
        staged["remote_blocks_expiry_time"] = None
        second = decode.submit(PROMPT, params=staged, name="d")
        await finish(lab.clock, second)
    assert second.sources == PromptSources(computed=40, local_cache=0, external=0)
    assert len(prefill.retentions) == 0


@pytest.mark.parametrize("broken", ["no proof", "no expiry", "owner gone"])
async def test_a_handle_that_cannot_be_trusted_costs_a_recompute(broken: str) -> None:
    """Without proof, fence or owner nothing is read, and the answer is right."""
    lab = Lab()
    prefill = lab.engine("p", shape=_without_cache())
    decode = lab.engine("d")
    async with Running(prefill, decode):
        _, second = await _turn(lab, prefill, decode, PROMPT)
        handle = decode.handle()
        if broken == "no proof":
            del handle[KEY]
        elif broken == "no expiry":
            handle["remote_blocks_expiry_time"] = None
        else:
            decode.reachable = False
        following = [*second.tokens, 7]
        third = prefill.submit(following, params=handle, name="next")
        await finish(lab.clock, third)
    assert third.sources == PromptSources(computed=45, local_cache=0, external=0)
    assert third.tokens == await _expected(following, 4)


async def test_a_failed_read_fails_the_request_of_a_stock_engine() -> None:
    """The stock connector's default policy answers with an error."""
    lab = Lab()
    rules = ConnectorRules(stock=True)
    prefill, decode = lab.engine("p", rules=rules), lab.engine("d", rules=rules)
    async with Running(prefill, decode):
        first = prefill.submit(PROMPT, max_tokens=1, params=dict(PREFILL_ONLY), name="p")
        staged = (await finish(lab.clock, first)).params
        prefill.reachable = False
        second = decode.submit(PROMPT, params=dict(staged or {}), name="d")
        output = await finish(lab.clock, second)
    assert output.finish_reason is FinishReason.ERROR
    assert "nobody there" in output.error
    assert decode.pool.used == 0


async def test_a_turn_served_locally_is_kept_again() -> None:
    """LOCAL computes only the new tokens, and leaves a retention of the whole turn."""
    lab = Lab()
    prefill, decode = lab.engine("p"), lab.engine("d")
    async with Running(prefill, decode):
        _, second = await _turn(lab, prefill, decode, PROMPT)
        following = [*second.tokens, 7]
        local = decode.submit(following, params={**LOCAL_ONLY, **MARKED}, name="local")
        await finish(lab.clock, local)
    assert local.sources == PromptSources(computed=5, local_cache=40, external=0)
    assert [one.tokens for one in decode.retentions] == [43, 48]
    # Shared blocks are counted once: 12 of the second turn, and the last of the first.
    assert decode.retentions.blocks() == decode.pool.used == 13


@pytest.mark.parametrize("when", [0.0, 0.05, 0.12, 0.16])
async def test_an_aborted_request_leaves_nothing(when: float) -> None:
    """Aborted while it waits, reads or runs, a request keeps no blocks, here or at P."""
    lab = Lab()
    prefill, decode = lab.engine("p"), lab.engine("d")
    async with Running(prefill, decode):
        first = prefill.submit(PROMPT, max_tokens=1, params=dict(PREFILL_ONLY), name="p")
        staged = (await finish(lab.clock, first)).params
        second = decode.submit(PROMPT, max_tokens=50, params={**(staged or {}), **MARKED}, name="d")
        if when:
            await lab.clock.advance(when)
        decode.scheduler.abort(second)
        assert second.state is RequestState.FINISHED
        await lab.clock.advance(0.5)
        assert (decode.pool.used, prefill.pool.used) == (0, 0)
        assert len(decode.retentions) == 0


async def test_a_reply_that_ends_with_a_stop_text_leaves_nothing() -> None:
    """vLLM's core sees such a request as aborted, so its blocks are not retained."""
    lab = Lab()
    engine = lab.engine("e")
    tokens = await _expected(PROMPT, 8)
    stop = bytes(tokens[42:44]).decode()
    async with Running(engine):
        request = engine.submit(PROMPT, max_tokens=8, params={**LOCAL_ONLY, **MARKED}, stop=(stop,))
        output = await finish(lab.clock, request)
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, stop)
    assert output.params is None
    assert engine.pool.used == 0


@pytest.mark.parametrize(("stock", "read"), [(True, 40), (False, 0)], ids=["stock", "kvplane"])
async def test_staged_blocks_wait_for_a_decode_leg_that_waits(*, stock: bool, read: int) -> None:
    """A leg without room keeps P's blocks alive; it reads them if their handle promised as much."""
    lab = Lab()
    rules = ConnectorRules(stock=stock)
    prefill = lab.engine("p", rules=rules)
    decode = lab.engine("d", shape=_without_cache(12), rules=rules)
    async with Running(prefill, decode):
        blocker = decode.submit(list(range(40)), params={**LOCAL_ONLY, **MARKED}, name="blocker")
        await finish(lab.clock, blocker)
        first = prefill.submit(PROMPT, max_tokens=1, params=dict(PREFILL_ONLY), name="p")
        staged = (await finish(lab.clock, first)).params
        await lab.clock.advance(1.0)
        held = next(iter(decode.retentions))
        held.deadline = held.exported = lab.clock.now() + 45.0
        second = decode.submit(PROMPT, params=dict(staged or {}), name="d")
        await lab.clock.advance(44.0)
        assert second.state is RequestState.WAITING
        assert len(prefill.retentions) == 1
        await finish(lab.clock, second)
        await lab.clock.advance(25.0)
    assert second.sources == PromptSources(computed=40 - read, local_cache=0, external=read)
    assert second.tokens == await _expected(PROMPT, 4)
    assert len(prefill.retentions) == 0


async def test_a_frozen_engine_does_nothing_until_it_thaws() -> None:
    """While frozen no token comes; afterwards the answer is complete."""
    lab = Lab()
    engine = lab.engine("e")
    async with Running(engine):
        request = engine.submit(PROMPT, max_tokens=3)
        engine.pace.frozen = True
        await lab.clock.advance(5.0)
        assert request.output_length == 0
        engine.pace.frozen = False
        await finish(lab.clock, request)
    assert request.tokens == await _expected(PROMPT, 3)
