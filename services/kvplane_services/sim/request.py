"""One request inside a simulated engine."""

import asyncio
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplane_services.sim.model import Attention


class RequestState(enum.Enum):
    """Where a request stands."""

    WAITING = "waiting"
    TRANSFERRING = "transferring"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(enum.Enum):
    """Why a request ended, as vLLM names it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Sampling:
    """When a reply ends. `stop` are texts that end it and are left out of it."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptSources:
    """Where the KV of a prompt came from, in tokens; they add up to the prompt."""

    computed: int
    local_cache: int
    external: int


@dataclass(frozen=True, slots=True)
class Output:
    """News of a request: one more token, its end, or both.

    `params` are the `kv_transfer_params` of the answer, on the end only. `error` says what went
    wrong for FinishReason.ERROR.
    """

    token: int | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | None = None
    params: Mapping[str, Any] | None = None
    error: str = ""


@dataclass(eq=False, slots=True)
class Request:
    """A request and what the engine knows of it.

    Attributes:
        prompt: Its tokens when it came.
        context: What else must be equal for KV to be shared, as `digest.context_of` has it.
        params: Its `kv_transfer_params`, or None.
        tokens: All tokens so far, prompt first.
        computed: Leading tokens whose KV `block_ids` hold.
        read_tried: The transfer that `params` ask for was made, or failed.
        outputs: What the HTTP side reads.

    """

    request_id: str
    prompt: list[int]
    context: bytes
    sampling: Sampling
    params: Mapping[str, Any] | None = None
    state: RequestState = RequestState.WAITING
    tokens: list[int] = field(init=False)
    text: str = ""
    computed: int = 0
    block_ids: list[int] = field(default_factory=list[int])
    attention: Attention | None = None
    sources: PromptSources | None = None
    read_tried: bool = False
    preempted: bool = False
    outputs: "asyncio.Queue[Output]" = field(default_factory=asyncio.Queue[Output])

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def output_length(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - len(self.prompt)

    @property
    def is_prefill_leg(self) -> bool:
        """Whether a decode engine will read its blocks."""
        return bool((self.params or {}).get("do_remote_decode"))

    @property
    def is_decode_leg(self) -> bool:
        """Whether a prefill engine holds its prompt's KV."""
        return bool((self.params or {}).get("do_remote_prefill"))

    @property
    def cached_tokens(self) -> int | None:
        """What `usage.prompt_tokens_details.cached_tokens` says, once the prompt was placed.

        On a decode engine the prefill engine's own count, where it was handed over.
        """
        handed_over = (self.params or {}).get("remote_prefill_cached_tokens")
        if isinstance(handed_over, int):
            return handed_over
        if self.sources is None:
            return None
        return self.sources.local_cache + self.sources.external
