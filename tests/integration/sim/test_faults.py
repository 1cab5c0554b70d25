"""Faults on request, as clients see them."""

import http.client
import json
import signal
import urllib.error
import urllib.request
from typing import Any

import pytest

from kvplane.transfer_params import PREFILL_ONLY
from kvplane_services.clock import SystemClock
from tests.support.programs import wait_until
from tests.support.sim_engines import SimPair, SimProcess
from tests.support.vllm_engines import Messages, ask, metric, transferred

HELLO: Messages = [{"role": "user", "content": "Hello there, this is a prompt of some length."}]


def _set(engine: SimProcess, *faults: dict[str, Any]) -> None:
    _post(engine, "/sim/faults", {"faults": list(faults)})


def _post(engine: SimProcess, path: str, body: Any, *, seconds: float = 10) -> bytes:
    request = urllib.request.Request(  # noqa: S310 - loopback
        engine.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310 - loopback
        content: bytes = answer.read()
        return content


def _stream(engine: SimProcess, *, seconds: float = 10) -> bytes:
    body = {"messages": HELLO, "max_tokens": 20, "ignore_eos": True, "stream": True}
    return _post(engine, "/v1/chat/completions", body, seconds=seconds)


def test_a_dying_engine_breaks_its_stream(engine: SimProcess) -> None:
    """The process is gone mid-stream, exactly as after kill -9."""
    _set(engine, {"kind": "die", "at_byte": 700})

    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        _stream(engine)

    wait_until(lambda: engine.program.exit_code is not None, seconds=5, what="it is dead")
    assert engine.program.exit_code == -signal.SIGKILL


def test_a_cut_stream_ends_without_done_and_the_engine_serves_on(engine: SimProcess) -> None:
    """So many bytes arrive and no more; the next request is served."""
    _set(engine, {"kind": "cut", "at_byte": 700, "count": 1})

    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)) as caught:
        _stream(engine)

    if isinstance(caught.value, http.client.IncompleteRead):
        assert len(caught.value.partial) == 700
    assert _stream(engine).endswith(b"data: [DONE]\n\n")
    assert metric(engine, "vllm:kv_cache_usage_perc") == 0


def test_a_stalled_stream_pauses_and_goes_on(engine: SimProcess) -> None:
    """The answer is whole, and late by what was asked for."""
    _set(engine, {"kind": "stall", "at_byte": 300, "seconds": 0.7, "count": 1})
    clock = SystemClock()
    started = clock.now()

    assert _stream(engine).endswith(b"data: [DONE]\n\n")
    assert clock.now() - started >= 0.7


def test_a_status_is_answered_so_many_times(engine: SimProcess) -> None:
    """The refusal has its status, Retry-After and OpenAI's shape; then the engine serves."""
    _set(engine, {"kind": "status", "status": 429, "retry_after": 3, "count": 1})

    with pytest.raises(urllib.error.HTTPError) as caught:
        _stream(engine)
    with caught.value as refused:
        assert (refused.code, refused.headers["retry-after"]) == (429, "3")
        assert json.load(refused)["error"]["code"] == 429
    assert _stream(engine)


def test_a_frozen_engine_answers_nothing_until_it_thaws(engine: SimProcess) -> None:
    """Not even probes are answered; a request sent meanwhile is served afterwards."""
    _set(engine, {"kind": "freeze"})
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(f"{engine.url}/health", timeout=0.5)  # noqa: S310 - loopback

    _set(engine)
    assert _stream(engine)


def test_slow_engines_are_slow(engine: SimProcess) -> None:
    """Every duration is longer by the factor."""
    _set(engine, {"kind": "slow", "factor": 30})
    clock = SystemClock()
    started = clock.now()

    _stream(engine)
    assert clock.now() - started >= 0.5  # 19 decode steps of 1 ms, times 30.


def test_parameters_can_be_missing(engine: SimProcess) -> None:
    """The prefill answer is a 200 without `kv_transfer_params`."""
    _set(engine, {"kind": "no-params", "count": 1})

    assert ask(engine, HELLO, params=PREFILL_ONLY, max_tokens=1).kv_transfer_params is None
    assert ask(engine, HELLO, params=PREFILL_ONLY, max_tokens=1).kv_transfer_params is not None


def test_failed_reads_cost_a_recompute(pair: SimPair) -> None:
    """A decode engine that cannot read computes the prompt itself, with the same answer."""
    first = ask(pair.prefill, HELLO, params=PREFILL_ONLY, max_tokens=1)
    reference = ask(pair.prefill, HELLO)
    _set(pair.decode, {"kind": "fail-reads", "count": 1})

    reply = ask(pair.decode, HELLO, params=first.kv_transfer_params)

    assert reply.token_ids == reference.token_ids
    assert transferred(pair.decode) == 0
    assert metric(pair.decode, "vllm:nixl_num_failed_transfers_total") == 1
    again = ask(pair.prefill, HELLO, params=PREFILL_ONLY, max_tokens=1)
    assert ask(pair.decode, HELLO, params=again.kv_transfer_params).text == reference.text


def test_unknown_faults_are_refused(engine: SimProcess) -> None:
    """A fault that does not exist is a 400 that names those that do, and changes nothing."""
    _set(engine, {"kind": "slow", "factor": 2})
    with pytest.raises(urllib.error.HTTPError) as caught:
        _set(engine, {"kind": "explode"})

    with caught.value as refused:
        assert refused.code == 400
        assert "freeze" in refused.read().decode()
    with urllib.request.urlopen(f"{engine.url}/sim/faults", timeout=5) as answer:  # noqa: S310 - loopback
        assert json.load(answer)["faults"] == [{"kind": "slow", "factor": 2, "count": None}]
