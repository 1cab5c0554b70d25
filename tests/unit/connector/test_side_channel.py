import threading

from kvplane_connector.side_channel import listen_on


def test_a_failing_listener_is_started_again() -> None:
    """Each message that it cannot read costs a start, until it is told to stop."""
    ready, stop = threading.Event(), threading.Event()
    starts = []

    def listen(
        data: object, is_ready: threading.Event, stopping: threading.Event, port: int
    ) -> None:
        starts.append((data, port))
        is_ready.set()
        if len(starts) < 3:
            raise ValueError("not a message")

    listen_on(listen, "data", ready, stop, 5600)

    assert starts == [("data", 5600)] * 3


def test_a_listener_that_cannot_begin_gives_up() -> None:
    """A taken address is an error in the log; vLLM's start, which waits for it, goes on."""
    ready, stop = threading.Event(), threading.Event()
    starts = []

    def listen(*_: object) -> None:
        starts.append(1)
        raise OSError("address in use")

    listen_on(listen, None, ready, stop)

    assert starts == [1]
    assert ready.is_set()


def test_a_stop_ends_it() -> None:
    """No listener is started once the engine stops."""
    ready, stop = threading.Event(), threading.Event()
    stop.set()

    listen_on(lambda *_: pytest_fail(), None, ready, stop)


def pytest_fail() -> None:
    raise AssertionError("started")
