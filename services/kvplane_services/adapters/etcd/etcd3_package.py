"""The package etcd3, made to work beside today's protobuf, and given types. All of it blocks.

Its last release, 0.12.0, brings messages of an old generator along, which protobuf 4 and later
refuse to load. It finds the project's own in their place, since these are entered as its module
`etcd3.etcdrpc` before it is imported. Nothing of it is patched, and no environment variable set.

Where it leaves out what a store needs (revisions and pages of reads, headers of transactions,
why a watch was cancelled, requests for progress), its stubs are called directly.
"""

import importlib
import queue
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc

from kvplane_services.adapters.etcd.backend import Changed, CompactedError, Deleted, KeyValue
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.grpc_channel import CHANNEL_OPTIONS
from kvplane_services.adapters.etcd.grpc_kv import prefix_end
from kvplane_services.adapters.etcd.grpc_token import Metadata
from kvplane_services.etcd_api.v3 import rpc_pb2, rpc_pb2_grpc

_MESSAGES = "etcd3.etcdrpc"
_PROGRESS = rpc_pb2.WatchRequest(progress_request=rpc_pb2.WatchProgressRequest())


def _load() -> types.ModuleType:
    if "etcd3" not in sys.modules:
        messages = types.ModuleType(_MESSAGES)
        for module in (rpc_pb2, rpc_pb2_grpc):
            public = {name: value for name, value in vars(module).items() if name[0] != "_"}
            vars(messages).update(public)
        sys.modules[_MESSAGES] = messages
    try:
        package = importlib.import_module("etcd3")
    except ModuleNotFoundError:
        sys.modules.pop(_MESSAGES, None)
        raise
    if package.etcdrpc.WatchRequest is not rpc_pb2.WatchRequest:
        raise ImportError(
            "etcd3 was imported before kvplane could give it messages that work", name="etcd3"
        )
    return package


_etcd3 = _load()


class _Client(_etcd3.Etcd3Client):  # type: ignore[misc, name-defined]
    """Takes certificates as they are, not the names of files that hold them."""

    def _get_secure_creds(
        self, ca_cert: bytes, cert_key: bytes | None = None, cert_cert: bytes | None = None
    ) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(ca_cert or None, cert_key, cert_cert)


class _Over(Exception):
    """There is no stream any more, and there is to be none."""


class _Watcher(_etcd3.watch.Watcher):  # type: ignore[misc, name-defined]
    """Ends its thread with its stream."""

    def _run(self) -> None:
        with suppress(_Over):
            super()._run()


class WatchEnded(Exception):
    """etcd ended a watch; the message is its reason."""


# Called on a thread of etcd3's: with none when the watch stands and as a sign of life, with events,
# or with a failure.
Listener = Callable[[tuple[Changed | Deleted, ...] | Exception], None]


class PackageClient:
    """A client of one etcd node. Its methods block, and any thread may call them.

    They raise what `cause_of` understands.
    """

    def __init__(self, config: EtcdConfig) -> None:
        host, _, port = config.target.rpartition(":")
        tls = config.tls
        # Its own way with passwords fails on connections without TLS, where gRPC refuses to send
        # what it calls credentials: tokens travel in the metadata, as etcd reads them.
        self._client: Any = _Client(
            host=host,
            port=port,
            ca_cert=None if tls is None else tls.root_certificates or b"",
            cert_key=None if tls is None else tls.private_key,
            cert_cert=None if tls is None else tls.certificate_chain,
            timeout=config.try_timeout,
            grpc_options=CHANNEL_OPTIONS,
        )

    def close(self) -> None:
        """Closes the connection; calls and watches fail."""
        self._client.close()

    def authenticate(
        self, request: rpc_pb2.AuthenticateRequest, *, seconds: float, metadata: Metadata
    ) -> rpc_pb2.AuthenticateResponse:
        """Draws a token."""
        del metadata
        stub: Any = rpc_pb2_grpc.AuthStub(self._client.channel)
        answer: rpc_pb2.AuthenticateResponse = stub.Authenticate(request, seconds)
        return answer

    def status(
        self, request: rpc_pb2.StatusRequest, *, seconds: float, metadata: Metadata
    ) -> rpc_pb2.StatusResponse:
        """What the node says of itself."""
        status: rpc_pb2.StatusResponse = self._client.maintenancestub.Status(
            request, seconds, metadata=metadata
        )
        return status

    def range(
        self, request: rpc_pb2.RangeRequest, *, seconds: float, metadata: Metadata
    ) -> rpc_pb2.RangeResponse:
        """Reads."""
        answer: rpc_pb2.RangeResponse = self._client.kvstub.Range(
            request, seconds, metadata=metadata
        )
        return answer

    def txn(
        self, request: rpc_pb2.TxnRequest, *, seconds: float, metadata: Metadata
    ) -> rpc_pb2.TxnResponse:
        """Makes a transaction."""
        answer: rpc_pb2.TxnResponse = self._client.kvstub.Txn(request, seconds, metadata=metadata)
        return answer

    def grant(self, ttl: int, *, seconds: float, metadata: Metadata) -> int:
        """Makes an etcd lease; returns its id."""
        self._prepare(seconds, metadata)
        lease: int = self._client.lease(ttl).id
        return lease

    def refresh(self, lease: int, *, seconds: float, metadata: Metadata) -> int:
        """Renews an etcd lease, on a stream of its own; returns its remaining seconds."""
        self._prepare(seconds, metadata)
        left: int = next(self._client.refresh_lease(lease)).TTL
        return left

    def revoke(self, lease: int, *, seconds: float, metadata: Metadata) -> None:
        """Ends an etcd lease."""
        self._prepare(seconds, metadata)
        self._client.revoke_lease(lease)

    def watch(
        self,
        prefix: bytes,
        start_revision: int,
        listener: Listener,
        *,
        seconds: float,
        metadata: Metadata,
    ) -> "PackageWatch":
        """Watches keys with a prefix from a revision on; returns when the watch stands."""
        return PackageWatch(
            rpc_pb2_grpc.WatchStub(self._client.channel),
            prefix,
            start_revision,
            listener,
            seconds=seconds,
            metadata=metadata,
        )

    def _prepare(self, seconds: float, metadata: Metadata) -> None:
        # Of all calls alike, so that threads do not disturb each other.
        self._client.timeout, self._client.metadata = seconds, metadata


class PackageWatch:
    """A watch of etcd3's, on a stream and a thread of its own. Takes the place of its stub.

    etcd3 opens streams for ever, each when the one before it has ended, in a thread that outlives
    its client: here the thread ends where the second stream would begin. It passes over answers
    to requests for progress, and over the reasons for which etcd cancels watches.
    """

    def __init__(
        self,
        stub: Any,
        prefix: bytes,
        start_revision: int,
        listener: Listener,
        *,
        seconds: float,
        metadata: Metadata,
    ) -> None:
        self._stub = stub
        self._listener = listener
        self._call: Any = None
        self._closed = False
        # Asks for progress, and None at the end.
        self._requests: queue.SimpleQueue[rpc_pb2.WatchRequest | None] = queue.SimpleQueue()
        watcher = _Watcher(self, timeout=seconds, metadata=metadata)
        try:
            watcher.add_callback(
                prefix or b"\0",
                self._heard,
                range_end=prefix_end(prefix),
                start_revision=start_revision,
            )
        except BaseException:
            self.close()
            raise

    def ask_for_progress(self) -> None:
        """Asks etcd for a sign of life."""
        self._requests.put(_PROGRESS)

    def close(self) -> None:
        """Ends it. Idempotent."""
        self._closed = True
        self._requests.put(None)
        if self._call is not None:
            self._call.cancel()

    def Watch(  # noqa: N802 - a stub's method
        self,
        requests: Iterator[rpc_pb2.WatchRequest],
        credentials: None = None,
        metadata: Metadata = (),
    ) -> Iterator[rpc_pb2.WatchResponse]:
        """See the class. For etcd3's watcher, on its thread."""
        del credentials
        if self._call is not None or self._closed:
            raise _Over
        try:
            self._call = self._stub.Watch(self._sent(requests), metadata=metadata)
        except ValueError as error:
            # The client was closed just before.
            self._closed = True
            return _broken(error)
        if self._closed:
            self._call.cancel()
        return self._received()

    def _sent(self, requests: Iterator[rpc_pb2.WatchRequest]) -> Iterator[rpc_pb2.WatchRequest]:
        # One that makes the watch is all that ever comes from etcd3.
        yield next(requests)
        while (request := self._requests.get()) is not None:
            yield request

    def _received(self) -> Iterator[rpc_pb2.WatchResponse]:
        for response in self._call:
            if response.canceled and not response.compact_revision:
                self._listener(WatchEnded(response.cancel_reason or "it gives no reason"))
            elif not (response.events or response.canceled):
                # It stands, or lives.
                self._listener(())
            yield response
        self._listener(WatchEnded("etcd ended the stream"))

    def _heard(self, heard: Any) -> None:
        """For etcd3's watcher, on its thread."""
        if isinstance(heard, _etcd3.exceptions.RevisionCompactedError):
            self._listener(CompactedError(heard.compacted_revision))
        elif isinstance(heard, Exception):
            self._listener(heard)
        elif heard.events:
            self._listener(tuple(_event(event) for event in heard.events))


def cause_of(error: Exception) -> tuple[str, grpc.StatusCode | None]:
    """What was said, and the status, of whatever the package raises."""
    # It raises its own, which say nothing, from within the handling of gRPC's.
    cause = error if isinstance(error, grpc.RpcError) else error.__context__
    if isinstance(cause, grpc.Call):
        return cause.details() or "", cause.code()
    if isinstance(error, _etcd3.exceptions.WatchTimedOut):
        return "", grpc.StatusCode.DEADLINE_EXCEEDED
    return str(error), None


def _broken(error: Exception) -> Iterator[rpc_pb2.WatchResponse]:
    """A stream that breaks at once, in the only way that etcd3's watcher understands."""
    raise grpc.RpcError(str(error)) from error
    yield


def _event(event: Any) -> Changed | Deleted:
    if isinstance(event, _etcd3.events.DeleteEvent):
        return Deleted(event.key, event.mod_revision)
    return Changed(
        KeyValue(event.key, event.value, event.create_revision, event.mod_revision, event.lease)
    )
