import os
from pathlib import Path

import pytest

from kvplane_services.engine.registration import DirectoryConfig
from kvplane_services.errors import InvalidRequest
from kvplane_services.gateway.config import GatewayConfig
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.router.config import RouterConfig
from kvplane_services.session.config import SessionConfig
from kvplane_services.settings import (
    PROCESSES,
    GatewaySettings,
    LeasesSettings,
    PlaneSettings,
    RegistrySettings,
    RouterSettings,
    load,
)
from kvplane_services.settings_sections import (
    GatewaySection,
    LeasesSection,
    RegistrationSection,
    RouterSection,
    SessionsSection,
)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("KVPLANE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kvplane.toml"


def test_defaults_need_nothing() -> None:
    """Every process has settings without file, environment or flags, on loopback only."""
    for kind in PROCESSES.values():
        settings = load(kind)
        assert "0.0.0.0" not in settings.model_dump_json()
    assert load(LeasesSettings).grpc.address == "127.0.0.1:7000"
    assert load(RegistrySettings).grpc.address == "127.0.0.1:7001"
    assert load(RouterSettings).grpc.address == "127.0.0.1:7002"


def test_flags_win_over_environment_over_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value comes from the strongest source that has it."""
    file.write_text(
        "[router]\nmin_pull_tokens = 1\nretention_wait = 0.1\nclaim_ttl = 60\n"
        "[grpc]\nstop_grace = 3\n"
    )
    monkeypatch.setenv("KVPLANE_ROUTER__MIN_PULL_TOKENS", "2")
    monkeypatch.setenv("KVPLANE_ROUTER__RETENTION_WAIT", "0.2")
    flags = {"router": {"min_pull_tokens": 3, "retention_wait": None}}
    router = load(RouterSettings, file=file, flags=flags).router
    assert (router.min_pull_tokens, router.retention_wait, router.claim_ttl) == (3, 0.2, 60)
    assert router.restart_grace == RouterSection().restart_grace


def test_section_in_file_keeps_the_process_default(file: Path) -> None:
    """A section of which the file sets one key keeps the process's own default for the rest."""
    file.write_text("[grpc]\nstop_grace = 3\n")
    grpc = load(RouterSettings, file=file).grpc
    assert (grpc.address, grpc.stop_grace) == ("127.0.0.1:7002", 3)


def test_file_is_named_by_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KVPLANE_CONFIG names the file where no flag does."""
    file.write_text('engines = ["prefill=http://127.0.0.1:8100"]\n')
    monkeypatch.setenv("KVPLANE_CONFIG", str(file))
    assert load(PlaneSettings).engines == ("prefill=http://127.0.0.1:8100",)
    assert load(PlaneSettings, flags={"engines": ["both=http://h:1"]}).engines == (
        "both=http://h:1",
    )


def test_one_file_serves_all_processes(file: Path) -> None:
    """A process leaves the sections of the others alone."""
    file.write_text("[leases]\nttl = 60\n[router]\nmin_pull_tokens = 5\n[gateway]\n")
    assert load(LeasesSettings, file=file).leases.ttl == 60
    assert load(RouterSettings, file=file).router.min_pull_tokens == 5
    assert load(GatewaySettings, file=file).gateway == GatewaySection()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[routr]\n", "routr in FILE is not a setting; did you mean router?"),
        ("[router]\nmin_pull = 3\n", "router.min_pull in FILE is not a setting"),
        # A typo in a section of another process is found too.
        ("[gateway]\nmax_body_byte = 3\n", "did you mean max_body_bytes?"),
        ("[router]\nmin_pull_tokens = 0\n", "setting router.min_pull_tokens in FILE"),
        ("[router]\nmin_pull_tokens = 'x'\n", "should be a valid integer"),
        ("[grpc]\naddress = 'here'\n", "'here' is not an address to listen on"),
        ("[peers]\nleases = '127.0.0.1:0'\n", "has port 0"),
        ("router = 3\n", "setting router in FILE"),
        ("x =", "is not TOML"),
    ],
)
def test_bad_file_is_refused_in_one_line(file: Path, text: str, words: str) -> None:
    """What is wrong in a file is named with its key and the file, in one line."""
    file.write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        load(RouterSettings, file=file)
    assert words in refused.value.message.replace(str(file), "FILE")
    assert "\n" not in refused.value.message


def test_missing_file_is_named(file: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(InvalidRequest, match=r"kvplane\.toml.*No such file"):
        load(RouterSettings, file=file)


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("KVPLANE_ROUTTER__X", "KVPLANE_ROUTTER__X is not a setting; did you mean router?"),
        ("KVPLANE_ROUTER__X", "router.x is not a setting"),
        ("KVPLANE_ROUTER__MIN_PULL_TOKENS", "setting router.min_pull_tokens"),
    ],
)
def test_bad_variable_is_refused(
    variable: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment variable of our form that is no setting, or out of bounds, is refused."""
    monkeypatch.setenv(variable, "none")
    with pytest.raises(InvalidRequest, match=words):
        load(RouterSettings)


def test_variables_of_other_processes_and_of_kubernetes_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sections of other processes, and what Kubernetes sets for a service, do no harm."""
    monkeypatch.setenv("KVPLANE_GATEWAY__HTTP", "127.0.0.1:1")
    monkeypatch.setenv("KVPLANE_PORT", "tcp://10.0.0.1:7000")
    monkeypatch.setenv("KVPLANE_SERVICE_HOST", "10.0.0.1")
    assert load(RouterSettings) == load(RouterSettings)


def test_bad_flag_is_refused() -> None:
    """A flag that is out of bounds is refused by its setting's name."""
    with pytest.raises(InvalidRequest, match=r"grpc\.address"):
        load(RouterSettings, flags={"grpc": {"address": "nope"}})


def test_other_processes_may_be_several() -> None:
    """The addresses of another process's replicas are separated by commas, each one checked."""
    flags = {"peers": {"leases": "10.0.0.1:7000, plane:7000"}}
    assert load(RouterSettings, flags=flags).peers.leases == "10.0.0.1:7000,plane:7000"
    with pytest.raises(InvalidRequest, match=r"peers\.leases: 'nope' is not an address"):
        load(RouterSettings, flags={"peers": {"leases": "10.0.0.1:7000,nope"}})


def test_secrets_are_not_shown() -> None:
    """A secret appears neither in a dump nor in a refusal."""
    settings = load(GatewaySettings, flags={"gateway": {"tenant_secret": "hush"}})
    assert "hush" not in settings.model_dump_json() + repr(settings)
    with pytest.raises(InvalidRequest) as refused:
        load(GatewaySettings, flags={"gateway": {"tenant_secret": "hush" * 30}})
    assert "hush" not in refused.value.message


def test_settings_cannot_be_changed() -> None:
    """Settings are frozen."""
    with pytest.raises(ValueError, match="frozen"):
        load(RouterSettings).router.min_pull_tokens = 3


def test_defaults_are_those_of_the_parts() -> None:
    """The defaults that operators read are the ones that the parts have by themselves."""
    values = RouterSection().model_dump(exclude={"claim_ttl", "longest_claim"})
    assert RouterConfig(**values) == RouterConfig()
    assert LeaseConfig(**LeasesSection().model_dump()) == LeaseConfig()
    assert DirectoryConfig(**RegistrationSection().model_dump()) == DirectoryConfig()
    assert SessionConfig(**SessionsSection().model_dump()) == SessionConfig()
    gateway = GatewaySection().model_dump(exclude={"http", "tenant_secret"})
    assert GatewayConfig(**gateway) == GatewayConfig()


def test_every_setting_says_what_it_means() -> None:
    """Each key of each section has a description."""
    for kind in PROCESSES.values():
        for name, section in kind.model_json_schema()["$defs"].items():
            for key, value in section["properties"].items():
                assert value.get("description"), f"{name}.{key}"


def test_passwords_stay_secret(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """The store's password comes from the environment, and is shown nowhere."""
    monkeypatch.setenv("KVPLANE_STORE__PASSWORD", "hush")
    monkeypatch.setenv("KVPLANE_STORE__URL", "etcd://127.0.0.1:2379")
    settings = load(LeasesSettings)
    assert settings.store.password.get_secret_value() == "hush"
    assert "hush" not in settings.model_dump_json()

    file.write_text("[store]\npassword = 1234\n")
    with pytest.raises(InvalidRequest) as refused:
        load(LeasesSettings, file=file)
    assert "store.password" in refused.value.message
    assert "1234" not in refused.value.message
