"""Which errors the command line expects, and the one line that it prints for each."""

from dataclasses import dataclass

from kvplane_services.errors import KvplaneError

# Packages that come with an extra, by the extra that brings them.
_EXTRAS = {
    "aiohttp": "gateway",
    "msgspec": "gateway",
    "vllm": "vllm",
    "nixl": "vllm",
    "opentelemetry.exporter": "gateway",
    "prometheus_client": "gateway",
    "openai": "demo",
    "etcd3": "etcd3",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What to tell about an error, and what to exit with."""

    line: str
    exit_code: int = 1


def describe(error: BaseException) -> Failure | None:
    """The line for an error that users can do something about; None for a bug."""
    if isinstance(error, BaseExceptionGroup):
        # A TaskGroup wraps what its tasks raise; the first known one is the cause.
        return next((found for one in error.exceptions if (found := describe(one))), None)
    if isinstance(error, KvplaneError):
        return Failure(_one_line(error.message))
    if isinstance(error, ModuleNotFoundError):
        return _missing_module(error)
    if isinstance(error, BrokenPipeError):
        return None  # Typer ends quietly when the reader of a pipe is gone.
    if isinstance(error, OSError):
        return Failure(_one_line(_operating_system(error)))
    return _remote(error)


def _missing_module(error: ModuleNotFoundError) -> Failure | None:
    missing = error.name or ""
    for package, extra in _EXTRAS.items():
        if missing == package or missing.startswith(f"{package}."):
            return Failure(
                f"this command needs {package}, which is not installed: "
                f"pip install 'kvplane[{extra}]'"
            )
    return None


def _operating_system(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{error.filename}: {text}" if error.filename else text


def _remote(error: BaseException) -> Failure | None:
    # Imported here: gRPC takes a while, and no error of its kind exists before its import.
    import grpc.aio

    from kvplane.client.errors import KvplaneClientError, UnavailableError, from_rpc

    if isinstance(error, grpc.aio.AioRpcError):
        error = from_rpc(error)
    if not isinstance(error, KvplaneClientError):
        return None
    target = error.metadata.get("target", "")
    if isinstance(error, UnavailableError) and not error.reason and target:
        # Without a reason it is not the plane that answered.
        return Failure(
            f"no plane answers at {target}: start one with `kvplane up`, or name another "
            f"with --plane HOST:PORT or KVPLANE_PLANE ({_one_line(error.message)})"
        )
    retry = "" if error.retry_after is None else f" (retry in {error.retry_after:g} s)"
    return Failure(_one_line(f"{error.message}{retry}"))


def _one_line(text: str) -> str:
    return " ".join(text.split())
