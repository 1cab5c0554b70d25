"""Runs pip so that a person sees it move, and turns its failures into one line."""

import os
import re
import selectors
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

LOG = Path(".build/pip.log")
# Seconds between two lines of progress.
EVERY = 5.0

UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|NameResolutionError|ProxyError"
    r"|SSLError|Connection refused|Network is unreachable|Max retries exceeded"
)


class PipError(Exception):
    """pip failed; the message is one line that says why."""


def install(python: Path, arguments: Sequence[str]) -> None:
    """Runs `pip install` in the environment of `python`, with its full output in LOG.

    Raises:
        PipError: It failed.

    """
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--no-input",
        "--progress-bar=off",
        "--retries=2",
    ]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    LOG.parent.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    with (
        LOG.open("w") as log,
        subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        ) as pip,
    ):
        progress = Progress()
        try:
            for line in read_lines(pip):
                if line:
                    log.write(f"{line}\n")
                    lines.append(line)
                progress.show(line)
        except KeyboardInterrupt:
            # A terminal interrupts pip too, others do not.
            pip.terminate()
            raise
    if pip.returncode:
        raise PipError(explain(lines))


def read_lines(pip: "subprocess.Popen[bytes]") -> Iterator[str]:
    """Each line of output as it comes; an empty one whenever nothing came for a second."""
    if pip.stdout is None:
        return
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pip.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(timeout=1.0):
                yield ""
                continue
            read = os.read(pip.stdout.fileno(), 1 << 16)
            if not read:
                break
            *whole, rest = (rest + read).split(b"\n")
            yield from (line.decode(errors="replace").rstrip() for line in whole)
    yield rest.decode(errors="replace").rstrip()


class Progress:
    """Prints where pip is, at most every few seconds."""

    def __init__(self) -> None:
        self._started = self._shown = time.monotonic()
        self._packages = 0
        self._doing = "starting pip"

    def show(self, line: str) -> None:
        """Takes in a line of pip's output, or an empty one for the passing of time."""
        words = line.split()
        match words:
            case ["Collecting" | "Processing", package, *_]:
                self._packages += 1
                self._doing = f"fetching {package.rsplit('/', 1)[-1]}"
            case ["Downloading" | "Using", *_]:
                self._doing = " ".join(words[:1] + [word.rsplit("/", 1)[-1] for word in words[1:]])
            case ["Installing", "collected", "packages:", *names]:
                self._doing = f"unpacking {len(names)} packages" if names[1:] else "unpacking"
            case _:
                pass
        now = time.monotonic()
        if now - self._shown >= EVERY:
            self._shown = now
            count = f"package {self._packages}: " if self._packages else ""
            print(f"  {now - self._started:4.0f} s  {count}{self._doing}", flush=True)


def explain(lines: Sequence[str]) -> str:
    """The one line that says why pip failed."""
    if any(UNREACHABLE.search(line) for line in lines):
        return (
            "the package index cannot be reached: check the network, a proxy (HTTPS_PROXY) or "
            f"pip's settings (pip config list); pip's output is in {LOG}"
        )
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else (lines[-1] if lines else "pip said nothing")
    return f"{reason} (pip's output is in {LOG})"
