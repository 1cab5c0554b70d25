"""What it is worth to keep a conversation's blocks. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecomputeCost:
    """Time that computing a context anew takes, in milliseconds.

    The defaults are of a model of about 30 billion parameters on one large GPU. What is ranked by
    them is ranked among the leases of one engine, so that their proportion counts, not their size.

    Args:
        per_token: Of each token by itself.
        per_token_squared: Of each token for each other one: attention.

    """

    per_token: float = 0.125
    per_token_squared: float = 1.5e-6

    def of(self, tokens: int) -> float:
        """Milliseconds for a context of so many tokens."""
        return tokens * (self.per_token + tokens * self.per_token_squared)


def worth_per_block(returns_per_second: float, saved: float, blocks: int) -> float:
    """Milliseconds of recomputing that a KV block is expected to save in a second of keeping it.

    Args:
        returns_per_second: See `ReturnRates.per_second`.
        saved: Milliseconds that a return saves.
        blocks: KV blocks that are kept for that.

    """
    return returns_per_second * saved / max(blocks, 1)
