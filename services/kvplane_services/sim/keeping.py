"""Which blocks stay after a request finished, for how long, and what the answer says of them."""

import math
from collections.abc import Callable
from typing import Any

from kvplane.digest import chain_of
from kvplane.transfer_params import TurnMark
from kvplane_services.clock import Clock
from kvplane_services.sim.config import ConnectorRules
from kvplane_services.sim.request import Request
from kvplane_services.sim.retentions import ReadEffect, Retention, RetentionTable
from kvplane_services.sim.transfers import Peer, answer_params


class Keeper:
    """The connector's part when a request finishes.

    Args:
        rules: How the connector behaves.
        retentions: Where blocks stay.
        address: This engine's own side channel, for its handles.
        exported_clock: Turns a time of this engine into the time that handles carry.
        clock: Time.

    Attributes:
        retention_ttl: Seconds that a retention stays before the plane says more; set to what
            the plane grants at registration.

    """

    def __init__(
        self,
        *,
        rules: ConnectorRules,
        retentions: RetentionTable,
        address: Peer,
        exported_clock: Callable[[float], float],
        clock: Clock,
    ) -> None:
        self._rules = rules
        self._retentions = retentions
        self._address = address
        self._exported_clock = exported_clock
        self._clock = clock
        self.retention_ttl = rules.retention_ttl

    def keep(self, request: Request, *, lacks_blocks: bool) -> dict[str, Any] | None:
        """Takes over a request's blocks; returns the answer's parameters, None if nothing stays.

        A request without `kv_transfer_params` leaves nothing behind, nor does a turn while another
        request waits for blocks.
        """
        if not request.params:
            return None
        if request.is_prefill_leg:
            return self._stage(request)
        mark = None if self._rules.stock else TurnMark.decode(request.params)
        if mark is None:
            return self._retain_stock(request)
        return None if lacks_blocks else self._retain(request, mark)

    def _stage(self, request: Request) -> dict[str, Any]:
        deadline = self._clock.now() + self._rules.staged_ttl
        # vLLM says until when it keeps a turn, but not until when it keeps staged blocks.
        params = self._handle(request, expiry=None if self._rules.stock else deadline)
        self._begin_consumable(request, params, deadline=deadline)
        return params

    def _retain(self, request: Request, mark: TurnMark) -> dict[str, Any]:
        """Keeps a turn under a lease. Its proof goes to the plane, not into the answer."""
        deadline = self._clock.now() + self.retention_ttl
        params = self._handle(request, expiry=deadline)
        self._retentions.begin(
            Retention(
                retention_id=request.request_id,
                block_ids=request.block_ids,
                tokens=request.computed,
                params=params,
                on_read=ReadEffect.KEEPS,
                deadline=deadline,
                exported=deadline,
                mark=mark,
                proof=chain_of(request.tokens[: request.computed], request.context),
            )
        )
        return params

    def _retain_stock(self, request: Request) -> dict[str, Any]:
        """Keeps a turn of nobody's session as vLLM does."""
        expiry = self._clock.now() + self._rules.stock_ttl
        params = self._handle(request, expiry=expiry)
        # The stock connector arms no timer for a turn that its engine served by itself: such
        # blocks stay until they are read or the engine stops.
        timed = request.is_decode_leg or not self._rules.stock
        self._begin_consumable(request, params, deadline=expiry if timed else math.inf)
        return params

    def _handle(self, request: Request, *, expiry: float | None) -> dict[str, Any]:
        return answer_params(
            request,
            address=self._address,
            tokens=request.computed,
            expiry=None if expiry is None else self._exported_clock(expiry),
        )

    def _begin_consumable(
        self, request: Request, params: dict[str, Any], *, deadline: float
    ) -> None:
        self._retentions.begin(
            Retention(
                retention_id=request.request_id,
                block_ids=request.block_ids,
                tokens=request.computed,
                params=params,
                on_read=ReadEffect.CONSUMES,
                deadline=deadline,
            )
        )
