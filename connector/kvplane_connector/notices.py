"""What engines tell each other by NIXL's notices, as far as the connector looks at it."""

from dataclasses import dataclass

# Of the notices that keep staged prompts alive; they name no retention.
_HEARTBEAT = "HB:"


@dataclass(frozen=True, slots=True)
class Notice:
    """That one rank of a reader has read something, or, with an empty name, a heartbeat.

    Attributes:
        name: Of the request whose blocks were read.
        readers: How many ranks of that reader read and tell.

    """

    name: str = ""
    readers: int = 1


def read_notice(message: bytes) -> Notice | None:
    """What a notice says; None if vLLM could not read it, which raises in its step loop."""
    try:
        text = message.decode()
        if text.startswith(_HEARTBEAT):
            return Notice()
        name, readers = text.rsplit(":", 1)
        return Notice(name, max(1, int(readers)))
    except ValueError:
        return None
