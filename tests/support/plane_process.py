"""`kvplane up` as a process, for tests."""

import socket
from pathlib import Path

from tests.support.programs import Program


def free_port() -> int:
    """A port that nobody listens on; it may be taken before it is used."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class PlaneProcess:
    """A plane with its settings, on ports that stay the same over restarts.

    Args:
        folder: For its settings and log.
        settings: TOML.

    """

    def __init__(self, folder: Path, settings: str = "") -> None:
        self._folder = folder
        self.target = f"127.0.0.1:{free_port()}"
        self.url = f"http://127.0.0.1:{free_port()}"
        (folder / "plane.toml").write_text(settings, encoding="utf-8")
        self.program: Program | None = None

    def start(self) -> None:
        """Starts it, and waits until it serves."""
        self.program = Program(
            *("up", "--config", str(self._folder / "plane.toml")),
            *("--grpc", self.target, "--http", self.url.removeprefix("http://")),
            log=self._folder / "plane.log",
        )
        self.program.wait_for(r"gRPC ready on (\S+)")
        self.program.wait_for(r"HTTP ready on (\S+)")

    def kill(self) -> None:
        """Ends it at once."""
        assert self.program is not None
        self.program.kill()

    def stop(self) -> int:
        """Asks it to end; returns its exit code."""
        assert self.program is not None
        return self.program.stop()
