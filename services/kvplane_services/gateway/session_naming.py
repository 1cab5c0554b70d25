"""Which conversation a request belongs to.

The first of these that is there names the session:

1. Headers `X-Session-ID`, `X-Conversation-ID`. X-Session-ID is also what OpenCode
   (packages/opencode/src/session/llm/request.ts), Crush (charmbracelet/crush#3277) and vLLM
   (SESSION_ID_HEADER of vllm/entrypoints/generate/base/serving.py, 0.32) use.
2. Body fields `conversation_id`; `session_id`, which is vLLM's own; `conversation` of OpenAI's
   Responses API, a string or an object with an `id`. vLLM ignores fields that it does not know
   and says so at debug level only, so all of them reach the engines as they came.
3. Headers of coding agents:
   - Claude Code: `X-Claude-Code-Session-Id`, with `X-Claude-Code-Agent-Id` for an inner one, whose
     history is its own (NVIDIA Dynamo, lib/llm/src/protocols/agents.rs; CLIProxyAPI#4452, where
     the traffic of real clients was looked at).
   - Codex: `session-id`, formerly `session_id` (openai/codex,
     codex-rs/codex-api/src/requests/headers.rs); `thread-id` differs from it for inner agents.
   - Amp: `X-Amp-Thread-Id` (CLIProxyAPI#3089).
   - OpenCode and pi towards other providers: `X-Session-Affinity`, `X-Opencode-Session`
     (packages/opencode/src/session/llm/request.ts).
   - Dynamo's clients: `X-Dynamo-Session-ID` (docs.nvidia.com/dynamo, "Session IDs").
4. Body field `prompt_cache_key`. OpenAI lets one key cover many conversations, so it counts
   together with the first message of the user.

Otherwise the session is implicit: digests of the first 1, 2, ... n messages, which the router
compares with those of turns that it has seen.

Not used: `user`, which names a person and not a conversation; `previous_response_id`, which
names a turn; `X-Client-Request-Id`, which most clients renew with each request. Nothing inside
of a message is ever read as a name.

A wrong guess costs reuse and nothing else: engines compare tokens before they reuse any.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kvplane_services.gateway.body import ClientBody
from kvplane_services.router.model import Subject
from kvplane_services.session.model import SessionKey

DEFAULT_TENANT = "default"

_NAMING_HEADERS = ("x-session-id", "x-conversation-id")
_NAMING_FIELDS = ("conversation_id", "session_id")
_AGENT_HEADERS = (
    "session-id",
    "session_id",
    "x-amp-thread-id",
    "x-session-affinity",
    "x-opencode-session",
    "x-dynamo-session-id",
)
# With an agent's session header: the header of the agent or thread inside it.
_PART_HEADERS = {"session-id": "thread-id", "session_id": "thread_id"}

_MAX_ID_BYTES = 512
_DIGEST_BYTES = 16
# A next turn adds a few messages to those of some turn before it, so that the longest prefixes
# are the ones that were seen.
_MAX_DIGESTS = 256
# No model reads prompts as long as these, so nobody looks at their messages one by one.
_MAX_MESSAGES = 100_000
_MAX_COMMAS = 1_000_000
# Messages above this size, mostly images and files, count by their bytes as they came.
_CANONICAL_BYTES = 65_536
# Clients drop these from older messages, and print null where they mean nothing.
_UNSTABLE = frozenset({"reasoning", "reasoning_content"})


def subject_of(headers: Mapping[str, str], body: ClientBody, *, tenant: str) -> Subject:
    """What the router needs to know of a turn.

    Args:
        headers: The request's, found whatever their case.
        body: The request's.
        tenant: Whose request it is.

    """
    session_id = explicit_name(headers, body)
    key = SessionKey(tenant=tenant, model=body.model, adapter="", session_id=session_id)
    return Subject(
        session_key=key,
        message_digests=() if session_id else message_digests(body, scope=(tenant, body.model)),
        prompt_tokens=estimated_prompt_tokens(body),
        max_output_tokens=body.max_output_tokens,
    )


def explicit_name(headers: Mapping[str, str], body: ClientBody) -> str:
    """The session's id if the client names one, else the empty string."""
    sources: tuple[Callable[[], str], ...] = (
        lambda: _first_header(headers, _NAMING_HEADERS),
        lambda: next((name for field in _NAMING_FIELDS if (name := body.text(field))), ""),
        lambda: _conversation(body),
        lambda: _claude_code(headers),
        lambda: _agent(headers),
        lambda: _prompt_cache_key(body),
    )
    return next((name for source in sources if (name := _bounded(source()))), "")


def message_digests(body: ClientBody, *, scope: tuple[str, ...]) -> tuple[bytes, ...]:
    """Digests of the first 1, 2, ... n messages; of the 256 longest such prefixes at most.

    The same messages in another scope (a tenant and a model) have other digests. A turn that
    adds more than 255 messages to the one before it is not recognised by them, and neither is
    one of more than 100,000 messages, which has none.
    """
    messages = _messages(body)
    if len(messages) > _MAX_MESSAGES:
        return ()
    chain = hashlib.blake2b(
        "\0".join(scope).encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES
    )
    digests: list[bytes] = []
    silent = len(messages) - _MAX_DIGESTS
    for number, message in enumerate(messages):
        # No JSON holds this byte, so that it is clear where each message begins.
        chain.update(b"\0")
        chain.update(_canonical(message))
        if number >= silent:
            digests.append(chain.copy().digest())
    return tuple(digests)


def estimated_prompt_tokens(body: ClientBody) -> int:
    """Tokens in the prompt as far as its size tells; 0 if it holds files or images."""
    prompt = bytes(body.fields.get("messages" if body.chat else "prompt", b""))
    if b";base64," in prompt or b"_url" in prompt:
        return 0
    if prompt.startswith(b"[") and not body.chat:
        return prompt.count(b",") + 1
    # English text has about four bytes a token.
    return len(prompt) // 4


def tenant_of(headers: Mapping[str, str], *, tenant_header: str, secret: bytes) -> str:
    """Whose request this is.

    With `tenant_header`, what an authenticating proxy says; else a digest of the API key, which
    does not tell the key; else `default`.
    """
    if tenant_header:
        return _bounded(headers.get(tenant_header, "")) or DEFAULT_TENANT
    authorization = headers.get("authorization", "")
    scheme, _, token = authorization.partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else authorization
    key = key or headers.get("api-key", "") or headers.get("x-api-key", "")
    if not key:
        return DEFAULT_TENANT
    digest = hashlib.blake2b(
        key.encode(errors="surrogatepass"), key=secret, digest_size=8, person=b"kvplane-tenant"
    )
    return f"key-{digest.hexdigest()}"


def _first_header(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := headers.get(name, "").strip())), "")


def _conversation(body: ClientBody) -> str:
    if name := body.text("conversation"):
        return name
    value = body.fields.get("conversation")
    if value is None or not bytes(value).startswith(b"{"):
        return ""
    try:
        name = msgspec.json.decode(value).get("id", "")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return name if isinstance(name, str) else ""


def _claude_code(headers: Mapping[str, str]) -> str:
    session = headers.get("x-claude-code-session-id", "").strip()
    agent = headers.get("x-claude-code-agent-id", "").strip()
    return f"{session}/{agent}" if session and agent else session


def _agent(headers: Mapping[str, str]) -> str:
    for name in _AGENT_HEADERS:
        if session := headers.get(name, "").strip():
            part = headers.get(_PART_HEADERS.get(name, ""), "").strip()
            return f"{session}/{part}" if part and part != session else session
    return ""


def _prompt_cache_key(body: ClientBody) -> str:
    key = body.text("prompt_cache_key")
    if not key:
        return ""
    for message in _messages(body):
        try:
            decoded = msgspec.json.decode(message)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(decoded, dict) and decoded.get("role") == "user":
            first = hashlib.blake2b(_canonical(message), digest_size=8).hexdigest()
            return f"{key}/{first}"
    return key


def _bounded(name: str) -> str:
    """The name without blanks around it; a digest of it if it is too long or is no text."""
    name = name.strip()
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        encoded = name.encode(errors="surrogatepass")
    else:
        if len(encoded) <= _MAX_ID_BYTES:
            return name
    return f"blake2b-{hashlib.blake2b(encoded, digest_size=16).hexdigest()}"


def _messages(body: ClientBody) -> list[msgspec.Raw]:
    messages = body.fields.get("messages")
    if messages is None or bytes(messages).count(b",") > _MAX_COMMAS:
        return []
    try:
        return msgspec.json.decode(messages, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        return []


def _canonical(message: msgspec.Raw) -> bytes:
    raw = bytes(message)
    if len(raw) > _CANONICAL_BYTES:
        return raw
    try:
        decoded: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw
    if isinstance(decoded, dict):
        decoded = {
            name: value
            for name, value in decoded.items()
            if value is not None and name not in _UNSTABLE
        }
    return msgspec.json.encode(decoded, order="sorted")
