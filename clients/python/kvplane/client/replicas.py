"""A plane's replicas: the one that is in use, and who is next when it fails.

gRPC finds a broken connection and makes it anew; to which of several addresses it cannot be told
where they are names, nor that a replica accepts connections and answers nothing. So each address
has a channel of its own, one is used until it fails, and then the next. The order is shuffled,
so that a replica's clients spread over the others when it goes away.
"""

import asyncio
import random
from collections.abc import Callable, MutableSequence
from typing import Any, Protocol, TypeVar

import grpc.aio

from kvplane.client.addresses import parse_targets
from kvplane.client.channel import Tls, open_channel
from kvplane.client.clock import Clock, SystemClock

Stub = TypeVar("Stub")

# Seconds, at most and by chance half of that, in which an address gets no second new channel. One
# that refuses connections would get one with every call.
_REDIAL = 1.0


class Dial(Protocol):
    """Opens a channel; see `open_channel`."""

    def __call__(self, target: str, *, tls: Tls | None = None) -> grpc.aio.Channel:
        """Opens a channel to one address."""
        ...


class Replica:
    """One address of a plane, and the channel to it."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.channel = channel
        self._stubs: dict[Any, Any] = {}

    def stub(self, kind: Callable[[grpc.aio.Channel], Stub]) -> Stub:
        """The stub of a service on this channel."""
        if kind not in self._stubs:
            self._stubs[kind] = kind(self.channel)
        stub: Stub = self._stubs[kind]
        return stub


class Replicas:
    """Channels to the replicas of one plane, of which one is in use. In one event loop.

    Args:
        target: Their addresses, `host:port,host:port`.
        tls: Encryption; None for none.
        dial: Opens channels, for tests.
        shuffle: Shuffles the order in place, for tests.
        clock: Time, for tests.

    Raises:
        ValueError: An address is not `host:port`.

    """

    def __init__(
        self,
        target: str,
        *,
        tls: Tls | None = None,
        dial: Dial = open_channel,
        shuffle: Callable[[MutableSequence[str]], None] = random.shuffle,
        clock: Clock | None = None,
    ) -> None:
        addresses = list(parse_targets(target))
        self.target = ",".join(addresses)
        shuffle(addresses)
        self._addresses = addresses
        self._tls = tls
        self._dial = dial
        self._place = 0
        self._open: dict[str, Replica] = {}
        self._clock: Clock = clock or SystemClock()
        # When each address may get another channel.
        self._redial_at: dict[str, float] = {}
        self._given_up: Replica | None = None

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def address(self) -> str:
        """Address of the replica in use."""
        return self._addresses[self._place]

    def in_use(self) -> Replica:
        """The replica to call. Its channel connects at the first call."""
        address = self.address
        if address not in self._open:
            self._open[address] = Replica(address, self._dial(address, tls=self._tls))
            wait = random.uniform(0.5, 1) * _REDIAL  # noqa: S311 - spreads attempts, no secret
            self._redial_at[address] = self._clock.now() + wait
        return self._open[address]

    def at(self, address: str) -> Replica | None:
        """The replica at an address, if it is in use or connected still; else None."""
        if address == self._addresses[self._place]:
            return self.in_use()
        replica = self._open.get(address)
        if replica is None:
            return None
        state = replica.channel.get_state(try_to_connect=True)
        return replica if state is grpc.ChannelConnectivity.READY else None

    async def leave(self, replica: Replica, *, silent: bool = False) -> None:
        """Another replica is in use from now on, if this one was.

        Args:
            replica: The one that failed. Many calls fail with it; the first one counts.
            silent: It did not answer. A single address, which may be a balancer's or a name with
                several, then gets a new connection.

        """
        if self._open.get(self._addresses[self._place]) is not replica:
            return
        self._place = (self._place + 1) % len(self._addresses)
        if silent and len(self._addresses) == 1:
            del self._open[replica.address]
            # What other calls still wait for there may come yet; what came before may not.
            before, self._given_up = self._given_up, replica
            if before is not None:
                await before.channel.close(None)
        await self._renew_broken()

    async def _renew_broken(self) -> None:
        """Gives the replica in use a new channel, where the old one lost its connection.

        That one makes its next attempt after a wait that grew while nobody asked for it, and
        refuses all calls until then, though the replica may be back.
        """
        replica = self._open.get(self._addresses[self._place])
        if replica is None or self._clock.now() < self._redial_at[replica.address]:
            return
        state = replica.channel.get_state()
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            del self._open[replica.address]
            await replica.channel.close(None)

    async def aclose(self) -> None:
        """Closes the connections; calls in flight fail. Idempotent."""
        for replica in (*self._open.values(), *((self._given_up,) if self._given_up else ())):
            await replica.channel.close(None)


def is_own_cancellation() -> bool:
    """Whether a CancelledError that was just caught is for the current task.

    Closing a channel cancels the calls on it, which looks the same to those who wait for them.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
