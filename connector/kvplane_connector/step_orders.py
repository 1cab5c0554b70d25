"""What the connector's two halves tell each other around a step of the engine."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from kvplane.transfer_params import Word
from kvplane_connector.vllm_names import KVConnectorWorkerMetadata, NixlHandshakePayload

# The attribute of vLLM's step metadata under which `StepOrders` travel.
ATTRIBUTE = "kvplane"


@dataclass
class WordsPayload(NixlHandshakePayload):
    """vLLM's handshake message of a rank; readers that do not know what is added drop it.

    Attributes:
        kvplane_words: Address and start of the rank's generation words.

    """

    kvplane_words: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class StepOrders:
    """From the scheduler to the workers, before a step.

    Attributes:
        keep: Requests whose blocks a read does not consume. Sent when a request is first
            scheduled, so that no reader can be earlier.
        deadlines: New times to free retentions at, in the scheduler's clock.
        release: Retentions to free in this very step; those that have ended are ignored.
        slots: Slots of the generation words of requests that finished and whose blocks stay.
        words: Of requests that begin to read: where to find if the owner kept the blocks.
        at_rest: Whether the engine rests between this step and the next.

    """

    keep: AbstractSet[str] = frozenset()
    deadlines: Mapping[str, float] = field(default_factory=dict[str, float])
    release: AbstractSet[str] = frozenset()
    slots: Mapping[str, int] = field(default_factory=dict[str, int])
    words: Mapping[str, Word] = field(default_factory=dict[str, Word])
    at_rest: bool = False


@dataclass(slots=True)
class StepNews(KVConnectorWorkerMetadata):
    """From the workers to the scheduler, after a step.

    Attributes:
        reads: Reads since the retention began, by retention.
        applied: Deadlines that the worker keeps from now on, by retention.

    """

    reads: dict[str, int] = field(default_factory=dict[str, int])
    applied: dict[str, float] = field(default_factory=dict[str, float])

    def aggregate(self, other: "StepNews") -> "StepNews":
        """Joins the news of two ranks. A deadline counts only if every rank keeps it."""
        for name, count in other.reads.items():
            self.reads[name] = max(self.reads.get(name, 0), count)
        self.applied = {
            name: min(deadline, other.applied[name])
            for name, deadline in self.applied.items()
            if name in other.applied
        }
        return self
