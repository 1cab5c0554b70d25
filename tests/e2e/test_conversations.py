"""Plane and simulated engines as processes, and an ordinary client: reuse, and that it is right."""

from openai import OpenAI

from tests.e2e.stage import Conversation, Stage

QUESTIONS = (
    "The build failed in the replication test. Where do I look first?",
    "The leader stepped down. Is that the cause or a symptom?",
    "Show me how to prove it.",
    "Should the fix be a larger pool, a second pool, or a priority?",
    "Write the commit message.",
)


def _first(chat: Conversation) -> None:
    """The first turn has nothing to pull, so it is not forced to."""
    strategy, chat.strategy = chat.strategy, "auto"
    chat.ask(QUESTIONS[0])
    chat.strategy = strategy


def test_five_streamed_turns_reuse_their_history(stage: Stage, client: OpenAI) -> None:
    """From the second turn on prefill pulls all that decode holds; answers equal recompute's."""
    reusing = Conversation(stage, client, strategy="auto")
    recomputing = Conversation(stage, client, strategy="recompute")
    held = 0
    for number, question in enumerate(QUESTIONS):
        reusing.strategy = "pull" if number else "auto"
        said = reusing.ask(question)
        reference = recomputing.ask(question)

        assert said.text == reference.text
        assert said.text
        assert said.strategy == ("pull" if number else "recompute")
        assert (said.pulled, said.computed) == (held, said.prompt_tokens - held)
        assert (reference.pulled, reference.computed) == (0, reference.prompt_tokens)
        # The last token was sampled and never fed back.
        held = said.prompt_tokens + said.reply_tokens - 1


def test_by_itself_the_plane_reuses(stage: Stage, client: OpenAI) -> None:
    """Nobody forces anything: the second turn does not recompute what decode holds."""
    chat = Conversation(stage, client)
    first = chat.ask(QUESTIONS[0])
    expected = chat.recomputed(QUESTIONS[1])

    second = chat.ask(QUESTIONS[1])

    assert second.strategy in ("pull", "local")
    assert second.computed < first.prompt_tokens
    assert second.text == expected


def test_forks_share_what_they_have_in_common(chat: Conversation) -> None:
    """Two ways on from one turn, under one session, both pull and both answer right."""
    _first(chat)
    ways = [chat.fork(session=chat.session) for _ in range(2)]
    for way, question in zip(ways, QUESTIONS[1:3], strict=True):
        expected = way.recomputed(question)
        said = way.ask(question)
        assert said.text == expected
        assert said.pulled > 0


def test_edited_history_is_answered_right(chat: Conversation) -> None:
    """A client that rewrites its history gets the answer to what it sent, not to what was."""
    _first(chat)
    whole = chat.fork(session=chat.session).ask(QUESTIONS[1]).pulled
    chat.messages[1] = {"role": "user", "content": QUESTIONS[0].replace("build", "Build")}
    expected = chat.recomputed(QUESTIONS[1])

    said = chat.ask(QUESTIONS[1])

    assert said.text == expected
    assert 0 < said.pulled < whole


def test_an_unrelated_history_under_one_session_pulls_nothing(chat: Conversation) -> None:
    """A session id that is used for another conversation costs a recompute, nothing else."""
    _first(chat)
    chat.messages[:] = [{"role": "system", "content": "Another conversation altogether. " * 20}]
    expected = chat.recomputed(QUESTIONS[1])

    said = chat.ask(QUESTIONS[1])

    assert said.text == expected
    assert said.pulled == 0


def test_a_session_of_another_client_is_not_shared(stage: Stage, chat: Conversation) -> None:
    """The same session id under another API key is another tenant's session."""
    _first(chat)
    with stage.client().with_options(api_key="sk-somebody-else") as stranger:
        other = chat.fork(session=chat.session, strategy="auto")
        other.client = stranger
        said = other.ask(QUESTIONS[1])

    assert said.strategy == "recompute"
    assert said.pulled == 0
