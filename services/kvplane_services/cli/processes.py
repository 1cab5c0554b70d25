"""How a command becomes a process of the plane: settings, logs, and then the process itself."""

from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from kvplane_services.clock import Clock
    from kvplane_services.settings import ProcessSettings

    S = TypeVar("S", bound=ProcessSettings)
else:
    S = TypeVar("S")

S_contra = TypeVar("S_contra", contravariant=True)


class Process(Protocol[S_contra]):
    """A composition root of `kvplane_services.main`."""

    def __call__(self, settings: S_contra, *, clock: "Clock") -> Coroutine[Any, Any, None]:
        """Runs until a signal asks to stop."""
        ...


def run_process(
    kind: type[S],
    process: Process[S],
    *,
    config: Path | None,
    flags: Mapping[str, Mapping[str, Any] | Any],
) -> None:
    """Runs a process with its settings from the command line, the environment and the file.

    Raises:
        KvplaneError: The settings cannot be used.
        OSError: An address is taken.

    """
    import asyncio

    from kvplane_services.clock import SystemClock
    from kvplane_services.main.garbage import look_for_garbage_seldom
    from kvplane_services.main.logs import set_up_logs
    from kvplane_services.settings import load

    settings = load(kind, file=config, flags=flags)
    set_up_logs(settings.log)
    look_for_garbage_seldom()
    asyncio.run(process(settings, clock=SystemClock()))
