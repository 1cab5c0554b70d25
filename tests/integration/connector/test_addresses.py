import socket

from kvplane_connector.addresses import until_open
from tests.support.clock import FakeClock


async def test_the_wait_for_a_server_ends_when_it_listens() -> None:
    """A server that accepts connections ends the wait at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"

        assert await until_open(endpoint, patience=0, clock=FakeClock())


async def test_the_wait_for_a_server_is_bounded() -> None:
    """Where nothing listens the wait ends when its time is up."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"

        assert not await until_open(endpoint, patience=0, clock=FakeClock())
