"""Gateway, plane and two real vLLM engines: what a client gets, byte for byte, and what it cost."""

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvplane.client.sync import SyncPlane
from kvplane_services.local.engines import EnginePair
from tests.support.plane_process import PlaneProcess
from tests.support.programs import wait_until
from tests.support.vllm_engines import (
    MODEL,
    Messages,
    computed,
    metric,
    recomputed,
    started_pair,
    transferred,
)

# The first test waits for the engines.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

_SETTINGS = """
[gateway]
response_headers = true
allow_strategy_header = true
[router]
retention_wait = 0.5
"""
_SYSTEM = "You answer in one line, and you name the file and the line that a fault comes from. " * 8
_FIRST = "The build failed in the replication test. Where do I look first?"
_SECOND = "The leader stepped down. Is that the cause or a symptom?"
_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running plane and its two engines."""

    url: str
    plane: str
    process: PlaneProcess
    pair: EnginePair


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and what it cost the prefill engine."""

    raw: bytes
    headers: dict[str, str]
    text: str
    prompt_tokens: int
    pulled: int
    computed: int


@dataclass
class Chat:
    """A conversation; without a session id the gateway has to recognise it."""

    deployment: Deployment
    session: str = ""
    messages: Messages = field(default_factory=lambda: [{"role": "system", "content": _SYSTEM}])

    def ask(self, question: str, *, stream: bool = True, strategy: str = "") -> Answer:
        """One turn; its answer becomes history."""
        self.messages.append({"role": "user", "content": question})
        headers = {"x-kvplane-strategy": strategy} if strategy else {}
        if self.session:
            headers["x-session-id"] = self.session
        prefill = self.deployment.pair.prefill
        before = transferred(prefill), computed(prefill)
        with _post(self.deployment, _body(self.messages, stream=stream), headers) as answered:
            raw: bytes = answered.read()
            got = {name.lower(): value for name, value in answered.headers.items()}
        text, prompt_tokens = _streamed(raw) if stream else _whole(raw)
        self.messages.append({"role": "assistant", "content": text})
        return Answer(
            raw=raw,
            headers=got,
            text=text,
            prompt_tokens=prompt_tokens,
            pulled=transferred(prefill) - before[0],
            computed=computed(prefill) - before[1],
        )

    def expected(self, question: str) -> str:
        """What an engine that reuses nothing answers next."""
        messages = [*self.messages, {"role": "user", "content": question}]
        return recomputed(self.deployment.pair, messages, max_tokens=_TOKENS).text


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployment")
    plane = PlaneProcess(folder, _SETTINGS)
    plane.start()
    try:
        with started_pair(plane.target, folder) as pair:
            _until_registered(plane.target)
            yield Deployment(plane.url, plane.target, plane, pair)
    finally:
        plane.stop()


@pytest.fixture
def chat(deployment: Deployment) -> Chat:
    return Chat(deployment, session=f"s-{uuid.uuid4().hex[:12]}")


def test_turn_two_takes_its_history_from_decode(chat: Chat) -> None:
    """vLLM counts the history as read over NIXL; the streamed text is the recomputed one."""
    first = chat.ask(_FIRST)
    transfers = metric(chat.deployment.pair.prefill, "vllm:nixl_xfer_time_seconds_count")
    expected = chat.expected(_SECOND)

    second = chat.ask(_SECOND)

    assert (first.pulled, first.computed) == (0, first.prompt_tokens)
    # The last token of an answer was sampled and never fed back.
    held = first.prompt_tokens + _TOKENS - 1
    assert (second.pulled, second.computed) == (held, second.prompt_tokens - held)
    assert metric(chat.deployment.pair.prefill, "vllm:nixl_xfer_time_seconds_count") > transfers
    assert second.headers["x-kvplane-strategy"] == "pull"
    assert second.text == expected
    assert len(second.text) > 1


def test_a_streamed_answer_holds_no_parameters_of_ours(chat: Chat) -> None:
    """Neither vLLM's transfer parameters nor our key are in the stream's bytes."""
    for question in (_FIRST, _SECOND):
        raw = chat.ask(question).raw

        assert b"kv_transfer_params" not in raw
        assert b"kvplane" not in raw.replace(MODEL.encode(), b"")
        assert raw.endswith(b"data: [DONE]\n\n")


def test_a_whole_answer_holds_no_parameters_of_ours(chat: Chat) -> None:
    """Where stock vLLM prints null for requests without parameters, so do we; and it reuses too."""
    chat.ask(_FIRST, stream=False)
    expected = chat.expected(_SECOND)

    second = chat.ask(_SECOND, stream=False)

    assert json.loads(second.raw)["kv_transfer_params"] is None
    assert second.pulled > 0
    assert second.text == expected


def test_a_client_that_names_no_session_is_recognised(deployment: Deployment) -> None:
    """The second turn of a client without any session id pulls all that the first left."""
    chat = Chat(deployment)
    # Unlike any other conversation here, and the same each time: some replies end within a
    # character, and are other tokens when they come back.
    chat.messages[0]["content"] += "7d1c0f5e3a924b86"
    first = chat.ask(_FIRST)
    expected = chat.expected(_SECOND)

    second = chat.ask(_SECOND)

    assert second.pulled == first.prompt_tokens + _TOKENS - 1
    assert second.text == expected


def test_edited_history_gets_the_answer_to_what_was_sent(chat: Chat) -> None:
    """Only the common prefix is read when the client changes what it said before."""
    first = chat.ask(_FIRST)
    chat.messages[1]["content"] = _FIRST.replace("replication", "Replication")
    expected = chat.expected(_SECOND)

    second = chat.ask(_SECOND)

    assert 0 < second.pulled < first.prompt_tokens
    assert second.text == expected


def test_two_ways_on_from_one_turn_both_read_it(chat: Chat) -> None:
    """A read does not consume: a fork and a retry pull the same tokens again."""
    chat.ask(_FIRST)
    fork = Chat(chat.deployment, session=chat.session, messages=list(chat.messages))
    expected = chat.expected(_SECOND)

    answers = [chat.ask(_SECOND), fork.ask(_SECOND)]

    assert [answer.text for answer in answers] == [expected, expected]
    assert all(answer.pulled for answer in answers)


def test_local_turns_need_no_prefill_and_are_retained_again(chat: Chat) -> None:
    """The engine that holds the history goes on by itself, and the next turn can pull from it."""
    chat.ask(_FIRST)
    expected = chat.expected(_SECOND)

    local = chat.ask(_SECOND, strategy="local")
    third = chat.ask("Write the commit message.", strategy="pull")

    assert (local.pulled, local.computed) == (0, 0)
    assert local.text == expected
    assert third.pulled == local.prompt_tokens + _TOKENS - 1


def test_a_killed_plane_comes_back_with_its_lease(chat: Chat) -> None:
    """Engines tell the next plane what they hold: same lease, same token, and turns reuse."""
    chat.ask(_FIRST)

    def leases() -> dict[str, int]:
        with SyncPlane(chat.deployment.plane) as plane:
            held = plane.each(plane.leases.list())
            return {
                one.name: one.fencing_token
                for one in held
                if one.session_key.session_id == chat.session
            }

    wait_until(lambda: bool(leases()), seconds=5, what="a lease")
    before = leases()
    expected = chat.expected(_SECOND)

    chat.deployment.process.kill()
    chat.deployment.process.start()

    _until_registered(chat.deployment.plane)
    wait_until(lambda: leases() == before, seconds=15, what="the lease, with its token")
    second = chat.ask(_SECOND)
    assert second.pulled > 0
    assert second.text == expected


def test_a_client_that_leaves_stops_its_turn(chat: Chat) -> None:
    """Decode stops within a second of the client's going, and keeps nothing for the turn."""
    chat.messages.append({"role": "user", "content": _FIRST})
    body = _body(chat.messages, stream=True, max_tokens=3000)
    decode = chat.deployment.pair.decode

    with _post(chat.deployment, body, {"x-session-id": chat.session}) as answered:
        assert answered.readline()
        assert metric(decode, "vllm:num_requests_running") == 1

    wait_until(
        lambda: metric(decode, "vllm:num_requests_running") == 0, seconds=1.5, what="decode stopped"
    )
    with SyncPlane(chat.deployment.plane) as plane:
        held = [lease.session_key.session_id for lease in plane.each(plane.leases.list())]
    assert chat.session not in held


def test_what_an_engine_refuses_reaches_the_client_as_it_is(chat: Chat) -> None:
    """A prompt with more tokens of answer than the model has room for is vLLM's own 400."""
    chat.messages.append({"role": "user", "content": _FIRST})
    body = _body(chat.messages, stream=True, max_tokens=1_000_000)

    with pytest.raises(urllib.error.HTTPError) as refused:
        _post(chat.deployment, body, {"x-session-id": chat.session})

    assert refused.value.code == 400
    error = json.loads(refused.value.read())["error"]
    assert "max_tokens" in error["message"]


def _body(messages: Messages, *, stream: bool, max_tokens: int = _TOKENS) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    return body


def _post(deployment: Deployment, body: dict[str, Any], headers: dict[str, str]) -> Any:
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{deployment.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **headers},
    )
    return urllib.request.urlopen(request, timeout=60)  # noqa: S310 - loopback


def _streamed(raw: bytes) -> tuple[str, int]:
    chunks = [
        json.loads(line.removeprefix(b"data: "))
        for line in raw.splitlines()
        if line.startswith(b"data: {")
    ]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, chunks[-1]["usage"]["prompt_tokens"]


def _whole(raw: bytes) -> tuple[str, int]:
    answer = json.loads(raw)
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]


def _until_registered(target: str) -> None:
    def both() -> bool:
        with SyncPlane(target) as plane:
            return len(list(plane.each(plane.engines.list()))) == 2

    wait_until(both, seconds=20, what="both engines are registered")
