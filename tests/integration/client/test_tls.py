"""A plane that serves with a certificate."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvplane.client import Plane, SessionKey, Tls, UnavailableError
from kvplane_services.cli.main import create_app
from tests.support.linked_engine import eventually, linked_engine
from tests.support.plane_process import PlaneProcess

_PEM = Path(__file__).parents[1] / "state" / "tls"
_TRUST = Tls(root_certificates=(_PEM / "cert.pem").read_bytes())


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneProcess]:
    settings = f'[grpc]\ntls_cert = "{_PEM / "cert.pem"}"\ntls_key = "{_PEM / "key.pem"}"\n'
    plane = PlaneProcess(tmp_path_factory.mktemp("plane"), settings)
    plane.start()
    yield plane
    assert plane.stop() == 0


async def test_who_trusts_the_certificate_gets_in(secured: PlaneProcess, key: SessionKey) -> None:
    """Calls and an engine's link work over TLS as they do without."""
    async with (
        Plane(secured.target, tls=_TRUST) as plane,
        linked_engine("decode-0", secured.target, tls=_TRUST) as engine,
    ):
        engine.retain("r1", key)
        await eventually(lambda: engine.held["r1"].lease != "")
        assert [one.session async for one in plane.leases.list()] == [key.name]


async def test_nobody_gets_in_in_the_clear(secured: PlaneProcess) -> None:
    """Without TLS the call fails as if nobody were there."""
    async with Plane(secured.target) as plane:
        with pytest.raises(UnavailableError):
            await plane.engines.get("decode-0")


def test_commands_take_the_certificate(secured: PlaneProcess) -> None:
    """`--tls-ca`, or its variable, is what an operator needs; a file that is not there is said."""
    arguments = ["engines", "list", "--plane", secured.target, "--output", "json"]
    certificate = str(_PEM / "cert.pem")
    by_option = CliRunner().invoke(create_app(), [*arguments, "--tls-ca", certificate])
    by_variable = CliRunner().invoke(create_app(), arguments, env={"KVPLANE_TLS_CA": certificate})
    assert (by_option.exit_code, by_variable.exit_code) == (0, 0), by_option.output
    assert CliRunner().invoke(create_app(), arguments).exit_code == 1
    missing = CliRunner().invoke(create_app(), [*arguments, "--tls-ca", "/nowhere.pem"])
    assert missing.exit_code == 2
