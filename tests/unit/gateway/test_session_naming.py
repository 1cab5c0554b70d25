import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from kvplane_services.gateway.body import ClientBody
from kvplane_services.gateway.openai_errors import OpenAIError
from kvplane_services.gateway.session_naming import (
    estimated_prompt_tokens,
    explicit_name,
    message_digests,
    subject_of,
    tenant_of,
)
from kvplane_services.router.inflight import InFlight
from kvplane_services.router.recognition import recognise
from kvplane_services.router.view import RouterView
from tests.support.clock import FakeClock

USER = {"role": "user", "content": "hello"}
REPLY = {"role": "assistant", "content": "hi"}
MORE = {"role": "user", "content": "and?"}
SCOPE = ("t", "m")


def body(*messages: dict[str, Any], **fields: Any) -> ClientBody:
    sent = {"model": "m", "messages": list(messages), **fields}
    return ClientBody.parse(json.dumps(sent).encode(), chat=True)


def named(headers: dict[str, str] | None = None, **fields: Any) -> str:
    return explicit_name(CIMultiDict(headers or {}), body(USER, **fields))


@pytest.mark.parametrize(
    ("headers", "fields", "name"),
    [
        ({"X-Session-ID": "a"}, {"conversation_id": "b"}, "a"),
        ({"X-Conversation-ID": " a "}, {}, "a"),
        ({"X-Session-ID": " "}, {"conversation_id": "b"}, "b"),
        ({}, {"conversation_id": "b", "session_id": "c"}, "b"),
        ({}, {"session_id": "c"}, "c"),
        ({}, {"conversation": "d"}, "d"),
        ({}, {"conversation": {"id": "d"}}, "d"),
        ({"X-Claude-Code-Session-Id": "e"}, {}, "e"),
        ({"X-Claude-Code-Session-Id": "e", "X-Claude-Code-Agent-Id": "sub"}, {}, "e/sub"),
        ({"session-id": "f"}, {}, "f"),
        ({"session_id": "f"}, {}, "f"),
        ({"session-id": "f", "thread-id": "f"}, {}, "f"),
        ({"session-id": "f", "thread-id": "g"}, {}, "f/g"),
        ({"X-Amp-Thread-Id": "T-1"}, {}, "T-1"),
        ({"x-session-affinity": "h"}, {}, "h"),
        ({"x-opencode-session": "i"}, {}, "i"),
        ({"x-dynamo-session-id": "j"}, {}, "j"),
        ({}, {}, ""),
    ],
)
def test_names_in_order(headers: dict[str, str], fields: dict[str, Any], name: str) -> None:
    """The first of the known headers and fields names the session."""
    assert named(headers, **fields) == name


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "x"},
        {"previous_response_id": "resp_1"},
        {"conversation_id": 7},
        {"conversation_id": None},
        {"conversation": {"id": 7}},
        {"conversation": {}},
        {"conversation": [1]},
        {"metadata": {"conversation_id": "x"}},
    ],
)
def test_what_does_not_name_a_session(fields: dict[str, Any]) -> None:
    """A person, a turn, or a value of the wrong type is no name."""
    assert named(**fields) == ""


def test_text_of_a_message_is_never_a_name() -> None:
    """A prompt that quotes a body does not choose its session."""
    message = {"role": "user", "content": '{"conversation_id":"x","user":"y"}'}

    assert explicit_name(CIMultiDict(), body(message)) == ""


def test_prompt_cache_key_covers_conversations() -> None:
    """The key names a session together with the first message of the user."""
    one = explicit_name(CIMultiDict(), body(USER, prompt_cache_key="app"))
    later = explicit_name(CIMultiDict(), body(USER, REPLY, MORE, prompt_cache_key="app"))
    other = explicit_name(CIMultiDict(), body(MORE, prompt_cache_key="app"))

    assert one == later
    assert one.startswith("app/")
    assert one != other


@pytest.mark.parametrize("name", ["x" * 600, "é" * 300, "caf\udce9"])
def test_unwieldy_names_become_digests(name: str) -> None:
    """A name that is too long or is no text still names one session, within the limit."""
    got = named({"X-Session-ID": name})

    assert got == named({"X-Session-ID": name})
    assert got.startswith("blake2b-")
    assert got != named({"X-Session-ID": name + "y"})


def test_next_turn_repeats_the_digests_of_the_last() -> None:
    """A conversation that goes on keeps the digests of its prefixes."""
    first = message_digests(body(USER), scope=SCOPE)
    second = message_digests(body(USER, REPLY, MORE), scope=SCOPE)

    assert len(first) == 1
    assert len(second) == 3
    assert second[0] == first[0]
    assert all(len(digest) == 16 for digest in second)


def test_digests_depend_on_order_and_scope() -> None:
    """Other messages, another order or another tenant make other digests."""
    here = message_digests(body(USER, REPLY), scope=SCOPE)

    assert not set(here) & set(message_digests(body(REPLY, USER), scope=SCOPE))
    assert not set(here) & set(message_digests(body(USER, REPLY), scope=("u", "m")))


def test_digests_ignore_how_a_message_is_written() -> None:
    """The order of keys, nulls, and reasoning that clients drop later change nothing."""
    plain = message_digests(body(USER, REPLY), scope=SCOPE)
    other = message_digests(
        body(
            {"content": "hello", "role": "user", "name": None},
            {**REPLY, "reasoning": "hm", "reasoning_content": "hm"},
        ),
        scope=SCOPE,
    )

    assert plain == other


def test_long_conversation_keeps_its_longest_prefixes() -> None:
    """Of many messages the last 256 prefixes count, with the digests that they always have."""
    messages = [{"role": "user", "content": str(number)} for number in range(1000)]
    whole = message_digests(body(*messages), scope=SCOPE)

    assert len(whole) == 256
    assert whole[-1] == message_digests(body(*messages[:1000]), scope=SCOPE)[-1]
    assert whole[0] == message_digests(body(*messages[:745]), scope=SCOPE)[-1]
    assert len(set(whole)) == 256


@pytest.mark.parametrize(("more", "same"), [(1, True), (255, True), (256, False)])
def test_router_recognises_a_long_conversation(more: int, *, same: bool) -> None:
    """The router finds the session of a turn that had all but the last 255 messages or fewer."""
    messages = [{"role": "user", "content": str(number)} for number in range(1000 + more)]
    view = RouterView(clock=FakeClock(), grace=1.0, memory=10)
    ids = iter("ab")

    def turn(upto: int) -> str:
        subject = subject_of(CIMultiDict(), body(*messages[:upto]), tenant="t")
        in_flight = InFlight(limit=1, retry_after=1.0)
        key = recognise(subject, view=view, in_flight=in_flight, new_id=lambda: next(ids)).key
        view.remember_messages(key, subject.message_digests[-1])
        return key.session_id

    assert (turn(1000) == turn(1000 + more)) is same


@pytest.mark.parametrize(
    "messages", [[{}] * 100_001, [{"content": "," * 1_000_001}], [[1] * 1_000_002]]
)
def test_more_than_any_model_reads_is_not_looked_at(messages: list[Any]) -> None:
    """Beyond the bounds a turn is one of a session of its own, and costs no work."""
    assert message_digests(body(*messages), scope=SCOPE) == ()


def test_where_a_message_begins_makes_a_difference() -> None:
    """Messages that read the same one after the other are not the same."""
    one = message_digests(body({"role": "a"}, {"role": "b"}), scope=SCOPE)
    other = message_digests(
        ClientBody.parse(b'{"model":"m","messages":[12,3]}', chat=True), scope=SCOPE
    )
    third = message_digests(
        ClientBody.parse(b'{"model":"m","messages":[1,23]}', chat=True), scope=SCOPE
    )

    assert len({one[-1], other[-1], third[-1]}) == 3


def test_named_session_needs_no_digests() -> None:
    """Digests are for clients that name no session."""
    key = subject_of(CIMultiDict({"X-Session-ID": "s"}), body(USER), tenant="t")
    implicit = subject_of(CIMultiDict(), body(USER, max_tokens=9), tenant="t")

    assert (key.session_key.session_id, key.message_digests) == ("s", ())
    assert implicit.session_key.session_id == ""
    assert len(implicit.message_digests) == 1
    assert (implicit.session_key.tenant, implicit.session_key.model) == ("t", "m")
    assert implicit.max_output_tokens == 9


@settings(max_examples=40)
@given(
    st.lists(
        st.dictionaries(st.text(), st.none() | st.integers() | st.text(), max_size=3), max_size=5
    ),
    st.integers(0, 5),
)
def test_digests_of_a_prefix_are_a_prefix(messages: list[dict[str, Any]], upto: int) -> None:
    """Whatever the messages are, the first n of them give the first n digests."""
    whole = message_digests(body(*messages), scope=SCOPE)

    assert message_digests(body(*messages[:upto]), scope=SCOPE) == whole[:upto]


# Halves of characters too, which JSON can spell and UTF-8 cannot.
TEXTS = st.text() | st.text(st.characters(categories=["Cs"]))


@settings(max_examples=100)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | TEXTS,
        lambda inner: st.lists(inner) | st.dictionaries(TEXTS | st.just("role"), inner),
        max_leaves=8,
    )
)
def test_strange_messages_are_no_trouble(messages: Any) -> None:
    """Whatever JSON `messages` is, naming does not fail, with a cache key or without."""
    for more in ({}, {"prompt_cache_key": "k"}):
        raw = json.dumps({"model": "m", "messages": messages, **more}, allow_nan=False).encode()
        try:
            parsed = ClientBody.parse(raw, chat=True)
        except OpenAIError:
            assert rb"\ud" in raw  # Some halves are refused at once.
            continue
        assert subject_of(CIMultiDict(), parsed, tenant="t").session_key.tenant == "t"
        assert estimated_prompt_tokens(parsed) >= 0


def test_tenants_are_told_apart_by_their_keys() -> None:
    """The same key is the same tenant, however it is sent; the key itself is not told."""

    def tenant(headers: dict[str, str], secret: bytes = b"") -> str:
        return tenant_of(CIMultiDict(headers), tenant_header="", secret=secret)

    key = tenant({"Authorization": "Bearer sk-1"})
    assert key == tenant({"authorization": "bearer  sk-1"}) == tenant({"api-key": "sk-1"})
    assert key != tenant({"Authorization": "Bearer sk-2"})
    assert key != tenant({"Authorization": "Bearer sk-1"}, secret=b"s")
    assert "sk-1" not in key
    assert tenant({}) == tenant({"Authorization": "Bearer "}) == "default"


def test_tenant_header_of_a_proxy() -> None:
    """Behind an authenticating proxy its header decides, and the key does not."""
    headers = CIMultiDict({"X-Tenant": "acme", "Authorization": "Bearer sk-1"})

    assert tenant_of(headers, tenant_header="x-tenant", secret=b"") == "acme"
    assert tenant_of(CIMultiDict(), tenant_header="x-tenant", secret=b"") == "default"


def test_prompt_size_is_estimated_from_text_only() -> None:
    """Text counts by its size, token ids by their number, files and images not at all."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    ids = ClientBody.parse(b'{"model":"m","prompt":[1,2,3]}', chat=False)

    assert 90 < estimated_prompt_tokens(body({"role": "user", "content": "x" * 400})) < 150
    assert estimated_prompt_tokens(body({"role": "user", "content": [image]})) == 0
    assert estimated_prompt_tokens(ids) == 3
