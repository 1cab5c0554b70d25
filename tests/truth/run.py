"""Leads conversations through situations, one after the other, and judges every answer."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from kvplane_services.clock import Clock
from kvplane_services.demo.engine_metrics import PromptTokens
from kvplane_services.local.errand import Progress
from tests.support.vllm_engines import Messages
from tests.truth.client import Answer, GatewayClient
from tests.truth.conversations import (
    Conversation,
    asked,
    edited,
    opened,
    rewound,
    shortened,
    truncated,
)
from tests.truth.deployment import TTL, Deployment
from tests.truth.references import References
from tests.truth.report import Difference, Report
from tests.truth.situations import Deck, Situation

_MOST_CONVERSATIONS = 40
_TURNS_EACH = 10
# Conversations that go on at the same time; the decode engine has memory for what they leave.
_AT_ONCE = 4
_REPLY = (8, 16)
_JUDGED_AT_ONCE = 4
_RESTART_EVERY = 400
_POLL = 0.1
# Seconds until the plane knows what an engine gave up.
_REPORTED_WITHIN = 1.0
_PROGRESS_EVERY = 25
_STRATEGIES = ("auto",) * 5 + ("local",)
_LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do: so many turns, of dice with this seed."""

    turns: int
    seed: int

    @property
    def conversations(self) -> int:
        """How many there are in all."""
        return min(_MOST_CONVERSATIONS, max(_AT_ONCE, self.turns // _TURNS_EACH))

    @property
    def turns_each(self) -> int:
        """After how many turns a conversation makes way for another."""
        return -(-self.turns // self.conversations)

    def restart_is_due(self, turns: int, restarts: int) -> bool:
        """Whether an engine is to be restarted after so many turns."""
        first = min(self.turns // 2, _RESTART_EVERY // 2)
        return turns >= first + restarts * _RESTART_EVERY


@dataclass(frozen=True, slots=True)
class _Turn:
    number: int
    situation: Situation
    conversation: int
    answer: Answer


class Run:
    """One run.

    Args:
        plan: How much.
        deployment: What it runs on.
        client: Asks the gateway.
        references: Judges answers.
        clock: Time.
        say: Called with a line for people now and then.

    """

    def __init__(
        self,
        *,
        plan: Plan,
        deployment: Deployment,
        client: GatewayClient,
        references: References,
        clock: Clock,
        say: Progress,
    ) -> None:
        self.report = Report()
        self.conversations = 0
        self._plan = plan
        self._deployment = deployment
        self._client = client
        self._references = references
        self._clock = clock
        self._say = say
        self._dice = random.Random(plan.seed)
        self._deck = Deck(self._dice)
        self._asked = 0
        self._awake: list[Conversation] = []
        self._asleep: list[tuple[float, Conversation]] = []
        self._unjudged: list[_Turn] = []

    async def all_turns(self) -> Report:
        """Runs the plan."""
        said = 0
        while self._asked < self._plan.turns:
            await self._play()
            if len(self._unjudged) >= 2 * _JUDGED_AT_ONCE:
                await self._judge()
            if self._asked - said >= _PROGRESS_EVERY:
                said = self._asked
                self._say(self._progress())
        await self._judge()
        return self.report

    async def _play(self) -> None:
        woken = self._woken()
        if woken is not None:
            await self._measured(Situation.EXPIRED, woken, self._next)
            return
        conversation = self._next_conversation()
        if conversation is None:
            await self._clock.sleep(_POLL)
            return
        if self._plan.restart_is_due(self._asked, self._deployment.restarts):
            await self._restarted(conversation)
            return
        if not conversation.exchanges:
            await self._measured(Situation.NEXT, conversation, self._next)
            return
        if conversation.unsettled:
            await self._measured(Situation.RESTARTED, conversation, self._next)
            return
        if conversation.is_long:
            conversation.messages = shortened(conversation.messages)
            await self._measured(Situation.TRUNCATED, conversation, self._next)
            return
        situation = self._deck.deal()
        if situation is Situation.EXPIRED:
            # It may come back when its lease just lives, just ended, or ended a while ago.
            away = TTL + self._dice.uniform(-1, 2)
            self._asleep.append((self._clock.now() + away, conversation))
            self._awake.remove(conversation)
        elif situation is Situation.RECLAIMED:
            await self._reclaimed(conversation)
        else:
            await self._measured(situation, conversation, self._plays[situation])

    @property
    def _plays(self) -> Mapping[Situation, Callable[[Situation, Conversation], Awaitable[str]]]:
        return {
            Situation.NEXT: self._next,
            Situation.EDITED: self._edited,
            Situation.TRUNCATED: self._truncated,
            Situation.FORKED: self._forked,
            Situation.REWOUND: self._rewound,
            Situation.CONCURRENT: self._concurrent,
            Situation.RETRIED: self._retried,
        }

    # -- Situations; each returns the strategy that its turns were served by

    async def _next(self, situation: Situation, conversation: Conversation) -> str:
        return await self._turn(
            situation, conversation, asked(conversation.messages, self._dice), strategy=self._any()
        )

    async def _edited(self, situation: Situation, conversation: Conversation) -> str:
        conversation.messages = edited(conversation.messages, self._dice)
        return await self._next(situation, conversation)

    async def _truncated(self, situation: Situation, conversation: Conversation) -> str:
        conversation.messages = truncated(conversation.messages, self._dice)
        return await self._next(situation, conversation)

    async def _rewound(self, situation: Situation, conversation: Conversation) -> str:
        conversation.messages = rewound(conversation.messages, self._dice)
        return await self._next(situation, conversation)

    async def _forked(self, situation: Situation, conversation: Conversation) -> str:
        """A turn on an older state, of a client that names the session or none."""
        named = self._dice.random() < 0.5
        branch = Conversation(
            conversation.number,
            conversation.session_id if named else "",
            rewound(conversation.messages, self._dice),
        )
        await self._turn(situation, branch, asked(branch.messages, self._dice), strategy="auto")
        if self._dice.random() < 0.5:
            conversation.messages = branch.messages
        return "auto"

    async def _retried(self, situation: Situation, conversation: Conversation) -> str:
        messages, strategy = asked(conversation.messages, self._dice), self._any()
        for _ in range(min(2, self._left)):
            await self._turn(situation, conversation, messages, strategy=strategy)
        return strategy

    async def _concurrent(self, situation: Situation, conversation: Conversation) -> str:
        strategy = self._any()
        several = [
            asked(conversation.messages, self._dice)
            for _ in range(min(self._dice.randint(2, 3), self._left))
        ]
        async with asyncio.TaskGroup() as tasks:
            for messages in several:
                tasks.create_task(self._turn(situation, conversation, messages, strategy=strategy))
        return strategy

    # -- Situations that disturb the deployment

    async def _reclaimed(self, conversation: Conversation) -> None:
        """A retention is taken away, and its blocks written over, after the router decided."""
        before = await self._deployment.counted()
        with self._deployment.held_reads() as held:
            messages = asked(conversation.messages, self._dice)
            turn = asyncio.create_task(self._answer(conversation, messages, strategy="auto"))
            caught = await held.reached(turn)
            if caught:
                caught = await self._take_away(conversation)
        answer = await turn
        situation = Situation.RECLAIMED if caught else Situation.NEXT
        self._note(situation, conversation, messages, answer)
        self._spent(situation, before, await self._deployment.counted(), answer.strategy)

    async def _take_away(self, conversation: Conversation) -> bool:
        """By the plane's release, or by requests that need the memory; whether it is gone."""
        session = conversation.known_as
        lease = await self._deployment.lease_of(session)
        if lease is None:
            return False
        if self._dice.random() < 0.5:
            await self._deployment.overwrite(self._dice, everything=True)
            return await self._deployment.is_freed(session, within=_REPORTED_WITHIN)
        await self._deployment.release(lease)
        freed = await self._deployment.is_freed(session, within=_REPORTED_WITHIN)
        if freed:
            await self._deployment.overwrite(self._dice)
        return freed

    async def _restarted(self, conversation: Conversation) -> None:
        """The engine that prefill is about to read from is replaced at its address."""
        await self._judge()
        situation = Situation.RESTARTED
        before = await self._deployment.counted()
        with self._deployment.held_reads() as held:
            messages = asked(conversation.messages, self._dice)
            turn = asyncio.create_task(self._answer(conversation, messages, strategy="auto"))
            caught = await held.reached(turn)
            self._say(
                "restarting the decode engine" + (" under a read" if caught else " between turns")
            )
            await self._deployment.restart_decode()
        answer = await turn
        await self._deployment.registered()
        for one in (*self._awake, *(sleeper for _, sleeper in self._asleep)):
            one.unsettled = True
        self._note(situation, conversation, messages, answer)
        after = await self._deployment.counted()
        # The new engine counts from zero.
        prefill = after["prefill"].since(before["prefill"])
        self.report.spent(situation, reused=prefill.transferred, recomputed=prefill.computed)

    # -- Turns

    async def _measured(
        self,
        situation: Situation,
        conversation: Conversation,
        play: Callable[[Situation, Conversation], Awaitable[str]],
    ) -> None:
        before = await self._deployment.counted()
        strategy = await play(situation, conversation)
        self._spent(situation, before, await self._deployment.counted(), strategy)

    async def _turn(
        self,
        situation: Situation,
        conversation: Conversation,
        messages: Messages,
        *,
        strategy: str,
    ) -> str:
        answer = await self._answer(conversation, messages, strategy=strategy)
        self._note(situation, conversation, messages, answer)
        return strategy

    async def _answer(
        self, conversation: Conversation, messages: Messages, *, strategy: str
    ) -> Answer:
        return await self._client.ask(
            messages,
            session_id=conversation.session_id,
            max_tokens=self._dice.randint(*_REPLY),
            stream=self._dice.random() < 0.75,
            strategy=strategy,
        )

    def _note(
        self, situation: Situation, conversation: Conversation, messages: Messages, answer: Answer
    ) -> None:
        self._asked += 1
        conversation.turns += 1
        conversation.unsettled = False
        conversation.known_as = answer.session
        conversation.answered(messages, answer.text)
        self._unjudged.append(_Turn(self._asked, situation, conversation.number, answer))

    def _spent(
        self,
        situation: Situation,
        before: Mapping[str, PromptTokens],
        after: Mapping[str, PromptTokens],
        strategy: str,
    ) -> None:
        prefill, decode = (after[role].since(before[role]) for role in ("prefill", "decode"))
        reused = prefill.transferred
        if strategy == _LOCAL:
            # Else decode's own cache saves a transfer, and no computing.
            reused += decode.cached
        self.report.spent(situation, reused=reused, recomputed=prefill.computed + decode.computed)

    async def _judge(self) -> None:
        unjudged, self._unjudged = self._unjudged, []
        at_once = asyncio.Semaphore(_JUDGED_AT_ONCE)

        async def judge(turn: _Turn) -> None:
            async with at_once:
                verdict = await self._references.judge(turn.answer.prompt, turn.answer.tokens)
            if verdict.equal:
                self.report.agreed(turn.situation, near_tie=verdict.near_tie)
                return
            difference = Difference(
                turn=turn.number,
                situation=turn.situation,
                conversation=turn.conversation,
                strategy=turn.answer.strategy,
                prompt=turn.answer.prompt,
                answer=turn.answer.tokens,
                expected=verdict.expected,
            )
            self._say(f"DIFFERS {difference}")
            self.report.differed(difference)

        async with asyncio.TaskGroup() as tasks:
            for turn in unjudged:
                tasks.create_task(judge(turn))

    # -- Who is next

    @property
    def _left(self) -> int:
        return self._plan.turns - self._asked

    def _any(self) -> str:
        return self._dice.choice(_STRATEGIES)

    def _next_conversation(self) -> Conversation | None:
        """One that is not asleep; None if all are."""
        if self.conversations < self._plan.conversations:
            self._awake = [one for one in self._awake if one.turns < self._plan.turns_each]
            while len(self._awake) < _AT_ONCE and self.conversations < self._plan.conversations:
                self.conversations += 1
                self._awake.append(opened(self.conversations, self._dice))
        return self._dice.choice(self._awake) if self._awake else None

    def _woken(self) -> Conversation | None:
        due = [one for one in self._asleep if one[0] <= self._clock.now()]
        if not due:
            return None
        self._asleep.remove(due[0])
        self._awake.append(due[0][1])
        return due[0][1]

    def _progress(self) -> str:
        total = self.report.total
        return (
            f"{self._asked} of {self._plan.turns} turns, {total.equal} of {total.turns} judged are "
            f"equal, {total.reused_tokens} prompt tokens reused, {total.recomputed_tokens} computed"
        )
