"""How long to wait before the next attempt."""

import random
from collections.abc import Callable


class Backoff:
    """Exponential waits with jitter, so that many clients do not come back at once.

    Args:
        first: Longest first wait, in seconds.
        longest: Upper bound of every wait, in seconds.
        uniform: Draws a number between its two arguments.

    """

    def __init__(
        self,
        *,
        first: float,
        longest: float,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first = first
        self._longest = longest
        self._uniform = uniform
        self._attempts = 0

    def next(self) -> float:
        """The wait after one more failure: between half and all of the doubled bound."""
        # 2**30 times any first wait is beyond every bound, and larger powers overflow.
        bound = min(self._longest, self._first * 2 ** min(self._attempts, 30))
        self._attempts += 1
        return self._uniform(bound / 2, bound)

    def reset(self) -> None:
        """Starts over after a success."""
        self._attempts = 0
