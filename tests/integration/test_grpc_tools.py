"""buf curl and grpcurl against a running plane: what operators have at hand must work."""

import base64
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from google.protobuf.descriptor import ServiceDescriptor
from google.rpc import error_details_pb2

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane.api.router.v1 import router_pb2
from kvplane.api.session.v1 import session_pb2
from tests.support.plane_process import PlaneProcess

_BIN = Path(sys.executable).parent
_PROTO = Path(__file__).resolve().parents[2] / "proto"
_SECONDS = 30

Answers = list[dict[str, Any]]

SERVICES: dict[str, ServiceDescriptor] = {
    service.full_name: service
    for file in (engine_pb2, lease_pb2, router_pb2, session_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
}
METHODS = {
    f"{service.full_name}/{method.name}": method
    for service in SERVICES.values()
    for method in service.methods
}
ENGINE = "kvplane.api.engine.v1.EngineService"
LEASE = "kvplane.api.lease.v1.LeaseService"
SESSION = "kvplane.api.session.v1.SessionService"
ROUTER = "kvplane.api.router.v1.RouterService"


class Tool(Protocol):
    """One way to call a plane by hand."""

    def services(self) -> set[str]:
        """The services that it lists."""
        ...

    def describe(self, service: str) -> str:
        """What it says of a service."""
        ...

    def command(self, method: str) -> list[str]:
        """The command that calls a method with the messages on its standard input."""
        ...

    def mask(self, path: str) -> Any:
        """A field mask of one path, as the tool reads it."""
        ...

    def error(self, stderr: str) -> tuple[str, str, error_details_pb2.ErrorInfo]:
        """Code, message and rich details of what it printed for a failed call."""
        ...


class Grpcurl:
    """grpcurl, by reflection."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._command = [str(_BIN / "grpcurl"), "-plaintext"]

    def services(self) -> set[str]:
        return set(_output([*self._command, self._target, "list"]).split())

    def describe(self, service: str) -> str:
        return _output([*self._command, self._target, "describe", service])

    def command(self, method: str) -> list[str]:
        return [*self._command, "-d", "@", self._target, method]

    def mask(self, path: str) -> Any:
        # This version does not know the JSON mapping of masks, which is a string.
        return {"paths": [path]}

    def error(self, stderr: str) -> tuple[str, str, error_details_pb2.ErrorInfo]:
        lines = dict(line.strip().split(": ", 1) for line in stderr.splitlines() if ": " in line)
        detail = json.loads(stderr[stderr.index("{") : stderr.rindex("}") + 1])
        info = error_details_pb2.ErrorInfo(
            reason=detail["reason"], domain=detail["domain"], metadata=detail["metadata"]
        )
        return lines["Code"], lines["Message"], info


class BufCurl:
    """buf curl, by reflection or by the protos of this repository."""

    def __init__(self, target: str, *options: str) -> None:
        self._url = f"http://{target}"
        self._command = [str(_BIN / "buf"), "curl", "--http2-prior-knowledge"]
        self._command += ["--protocol", "grpc", *options]

    def services(self) -> set[str]:
        return set(_output([*self._command, "--list-services", self._url]).split())

    def describe(self, service: str) -> str:
        methods = _output([*self._command, "--list-methods", self._url]).split()
        return "\n".join(one for one in methods if one.startswith(f"{service}/"))

    def command(self, method: str) -> list[str]:
        return [*self._command, "-d", "@-", f"{self._url}/{method}"]

    def mask(self, path: str) -> Any:
        return path

    def error(self, stderr: str) -> tuple[str, str, error_details_pb2.ErrorInfo]:
        failure = json.loads(stderr)
        (detail,) = [d for d in failure["details"] if d["type"] == "google.rpc.ErrorInfo"]
        encoded = detail["value"] + "=" * (-len(detail["value"]) % 4)
        info = error_details_pb2.ErrorInfo.FromString(base64.b64decode(encoded))
        return failure["code"], failure["message"], info


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    plane = PlaneProcess(tmp_path_factory.mktemp("plane"))
    plane.start()
    yield plane.target
    assert plane.stop() == 0


@pytest.fixture(params=["grpcurl", "buf curl", "buf curl --schema"])
def tool(request: pytest.FixtureRequest, target: str) -> Tool:
    match request.param:
        case "grpcurl":
            return Grpcurl(target)
        case "buf curl":
            return BufCurl(target, "--reflect")
        case _:
            return BufCurl(target, "--schema", str(_PROTO))


def test_tools_list_and_describe_every_service(tool: Tool) -> None:
    """Each service is listed and describes all of its methods."""
    assert set(SERVICES) <= tool.services()
    for name, service in SERVICES.items():
        described = tool.describe(name)
        for method in service.methods:
            assert method.name in described


def test_reflection_lists_health_too(target: str) -> None:
    """Probes find the standard health service."""
    assert "grpc.health.v1.Health" in Grpcurl(target).services()
    health = _call(Grpcurl(target), "grpc.health.v1.Health/Check", {"service": LEASE})
    assert health == [{"status": "SERVING"}]


def test_errors_show_their_details(tool: Tool) -> None:
    """A refused call says code, message and the machine-readable reason."""
    done = _run(tool, f"{ENGINE}/GetEngine", {"name": "engines/nobody"})
    assert done.returncode != 0
    code, message, info = tool.error(done.stderr)
    assert code.lower().replace("_", "") == "notfound"
    assert "engines/nobody" in message
    assert (info.reason, info.domain) == ("NOT_FOUND", "kvplane")
    assert info.metadata["engine"] == "engines/nobody"


def test_every_method_can_be_called_by_hand(tool: Tool) -> None:
    """An operator with a tool alone can do all that any client can."""
    called = Calls(tool)
    tag = uuid.uuid4().hex[:8]
    prefill, decode = f"prefill-{tag}", f"decode-{tag}"
    engine = _engines(called, prefill, decode, model=tag)
    lease = _leases(called, engine, model=tag)
    _sessions(called, model=tag)
    _routes(called, model=tag, engines={f"engines/{prefill}", f"engines/{decode}"})
    granted = {"name": lease["name"], "fencingToken": lease["fencingToken"]}
    called(f"{LEASE}/ConsumeLease", granted)
    called(f"{LEASE}/ReleaseLease", granted)
    (watched,) = called(f"{LEASE}/WatchLeases", {}, until="synced")[-1:]
    assert watched["synced"] is True
    called(f"{ENGINE}/DeregisterEngine", {"name": engine["name"], "epoch": engine["epoch"]})
    assert called.methods == set(METHODS)


class Calls:
    """Calls methods and remembers which."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self.mask = tool.mask
        self.methods: set[str] = set()

    def __call__(self, method: str, *messages: dict[str, Any], until: str = "") -> Answers:
        """The answers; of a stream without end, those up to the one with the field `until`."""
        self.methods.add(method)
        if until:
            return _watch(self._tool, method, messages[0], until=until)
        return _call(self._tool, method, *messages)


def _engines(called: Calls, prefill: str, decode: str, *, model: str) -> dict[str, Any]:
    """Registers two stock engines, and does with the decode engine what can be done."""
    engines = []
    for engine_id, role in ((prefill, "ROLE_PREFILL"), (decode, "ROLE_DECODE")):
        (registered,) = called(
            f"{ENGINE}/RegisterEngine",
            {
                "engineId": engine_id,
                "engine": {
                    "role": role,
                    "endpoint": "http://127.0.0.1:8200",
                    "models": [model],
                    "layout": {"blockSize": 16, "totalBlocks": "1000"},
                    "build": {"connector": "CONNECTOR_STOCK", "vllmVersion": "0.32.0"},
                },
                "ttl": "60s",
            },
        )
        engines.append(registered["engine"])
    engine: dict[str, Any] = engines[1]
    frame = {"name": engine["name"], "epoch": engine["epoch"], "load": {"runningRequests": 2}}
    answers = called(
        f"{ENGINE}/HeartbeatEngine",
        {"sequence": 1, "fullReport": True, **frame},
        {"sequence": 2, **frame},
    )
    assert [(one["sequence"], one["outcome"]) for one in answers] == [
        ("1", "HEARTBEAT_OUTCOME_RENEWED"),
        ("2", "HEARTBEAT_OUTCOME_RENEWED"),
    ]
    name = {"name": engine["name"]}
    assert called(f"{ENGINE}/DrainEngine", name)[0]["engine"]["state"] == "STATE_DRAINING"
    assert called(f"{ENGINE}/ResumeEngine", name)[0]["engine"]["state"] == "STATE_ACTIVE"
    assert called(f"{ENGINE}/GetEngine", name)[0]["engine"]["load"] == {"runningRequests": 2}
    (listed,) = called(f"{ENGINE}/ListEngines", {"model": model})
    assert [one["name"] for one in listed["engines"]] == [f"engines/{decode}", f"engines/{prefill}"]
    watched = called(f"{ENGINE}/WatchEngines", {}, until="synced")
    assert engine["name"] in {one["upserted"]["name"] for one in watched if "upserted" in one}
    return engine


def _leases(called: Calls, engine: dict[str, Any], *, model: str) -> dict[str, Any]:
    """Grants a lease and claims it in both ways."""
    (granted,) = called(
        f"{LEASE}/GrantLease",
        {
            "lease": {
                "sessionKey": {"tenant": "default", "model": model, "sessionId": "granted"},
                "engine": engine["name"],
                "engineEpoch": engine["epoch"],
                "retentionId": f"r-{model}",
                "tokens": "64",
                "blocks": "4",
                "handle": {"kvTransferParams": base64.b64encode(b"{}").decode()},
            },
            "ttl": "60s",
        },
    )
    lease: dict[str, Any] = granted["lease"]
    renewal = {"name": lease["name"], "fencingToken": lease["fencingToken"]}
    (streamed,) = called(
        f"{LEASE}/RenewLeases", {"sequence": 1, "holder": "people/me", "renewals": [renewal]}
    )
    stale = {**renewal, "fencingToken": str(int(lease["fencingToken"]) + 1)}
    (batched,) = called(
        f"{LEASE}/BatchRenewLeases", {"holder": "people/me", "renewals": [renewal, stale]}
    )
    assert [one["outcome"] for one in streamed["results"] + batched["results"]] == [
        "RENEWAL_OUTCOME_RENEWED",
        "RENEWAL_OUTCOME_RENEWED",
        "RENEWAL_OUTCOME_FENCED",
    ]
    (found,) = called(f"{LEASE}/GetLease", {"name": lease["name"]})
    assert [one["holder"] for one in found["lease"]["claims"]] == ["people/me"]
    (listed,) = called(f"{LEASE}/ListLeases", {"engine": engine["name"]})
    assert [one["name"] for one in listed["leases"]] == [lease["name"]]
    return lease


def _sessions(called: Calls, *, model: str) -> None:
    """Takes a session through its life."""
    key = {"tenant": "default", "model": model, "sessionId": "by hand"}
    (created,) = called(f"{SESSION}/CreateSession", {"session": {"key": key}})
    name = {"name": created["session"]["name"]}
    (updated,) = called(
        f"{SESSION}/UpdateSession",
        {"session": {**name, "hints": {"finalTurn": True}}, "updateMask": called.mask("hints")},
    )
    assert updated["session"]["hints"]["finalTurn"] is True
    called(f"{SESSION}/TouchSession", {**name, "keepFor": "30s"})
    assert called(f"{SESSION}/GetSession", name)[0]["session"]["key"] == key
    (listed,) = called(f"{SESSION}/ListSessions", {"model": model})
    assert name["name"] in {one["name"] for one in listed["sessions"]}
    watched = called(f"{SESSION}/WatchSessions", {}, until="synced")
    assert name["name"] in {one["upserted"]["name"] for one in watched if "upserted" in one}
    assert called(f"{SESSION}/EndSession", name)[0]["session"]["state"] == "STATE_ENDED"
    assert called(f"{SESSION}/DeleteSession", name) == [{}]


def _routes(called: Calls, *, model: str, engines: set[str]) -> None:
    """Explains, decides and reports one turn."""
    key = {"tenant": "default", "model": model, "sessionId": "routed"}
    subject = {"subject": {"sessionKey": key, "promptTokens": "100"}}
    (explained,) = called(f"{ROUTER}/ExplainRoute", subject)
    assert {one["engine"] for one in explained["candidates"]} >= engines
    (decided,) = called(f"{ROUTER}/DecideRoute", subject)
    decision = decided["decision"]
    assert {decision["prefill"]["engine"], decision["decode"]["engine"]} == engines
    (models,) = called(f"{ROUTER}/ListRoutedModels", {})
    assert model in json.dumps(models)
    report = {"decisionId": decision["decisionId"], "outcome": "ROUTE_OUTCOME_SUCCEEDED"}
    for leg in ("LEG_KIND_PREFILL", "LEG_KIND_DECODE"):
        assert called(f"{ROUTER}/ReportRouteOutcome", {**report, "leg": leg}) == [{}]


def _call(tool: Tool, method: str, *messages: dict[str, Any]) -> Answers:
    done = _run(tool, method, *messages)
    assert done.returncode == 0, done.stderr
    return list(_objects(done.stdout))


def _run(tool: Tool, method: str, *messages: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        tool.command(method),
        input="".join(json.dumps(one) for one in messages),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def _watch(tool: Tool, method: str, message: dict[str, Any], *, until: str) -> Answers:
    """Reads a stream without end up to an answer with the field `until`, then ends the tool."""
    with subprocess.Popen(
        tool.command(method), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(message))
        process.stdin.close()
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                answers = list(_objects(text))
                if until in answers[-1]:
                    process.terminate()
                    return answers
    raise AssertionError(f"the watch ended early: {text}")


def _output(command: list[str]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_SECONDS, check=True
    ).stdout


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    rest = text.lstrip()
    while rest:
        found, end = decoder.raw_decode(rest)
        yield found
        rest = rest[end:].lstrip()
