from dataclasses import fields
from typing import Any

import pytest

from kvplane_connector.settings import Settings, SettingsError, read_settings

PLANE = {"plane": "10.0.0.5:7000", "engine_id": "d0", "endpoint": "http://10.0.0.7:8000/"}


def read(kv_role: str | None = "kv_consumer", **given: Any) -> Any:
    return read_settings({"kvplane": given, "backends": ["UCX"]}, kv_role)


def test_nothing_set_is_an_engine_without_a_plane() -> None:
    """The defaults hold retentions for 30 s and keep the progress thread at a millisecond."""
    settings = read_settings({}, "kv_consumer")

    assert (settings.plane, settings.role, settings.lease_ttl) == ("", "decode", 30.0)
    assert (settings.progress_thread, settings.progress_delay_us) == (True, 1000)


@pytest.mark.parametrize(
    ("kv_role", "role"),
    [("kv_producer", "prefill"), ("kv_consumer", "decode"), ("kv_both", "both")],
)
def test_the_role_follows_vllms(kv_role: str, role: str) -> None:
    """Without a role of its own an engine serves what vLLM's kv_role says."""
    assert read(kv_role).role == role


def test_a_plane_is_read_with_what_it_needs() -> None:
    """A trailing slash of the endpoint is dropped."""
    settings = read(**PLANE, role="both", labels={"zone": "a"})

    assert settings.endpoint == "http://10.0.0.7:8000"
    assert (settings.role, settings.labels) == ("both", {"zone": "a"})


def test_a_plane_of_several_replicas_is_all_their_addresses() -> None:
    """Addresses are separated by commas, and spaces around them do not matter."""
    assert (
        read(**PLANE | {"plane": "10.0.0.5:7000, plane:7000"}).plane == "10.0.0.5:7000,plane:7000"
    )


def test_every_setting_can_be_given() -> None:
    """Each field of the settings is one that operators can set."""
    everything: dict[str, Any] = {one.name: one.default for one in fields(Settings)}
    assert read(**everything | {"role": "both", "labels": {}}) == Settings(role="both")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lease_tll": 5}, "unknown kvplane setting lease_tll"),
        ({"role": "decoder"}, "prefill, decode or both"),
        ({"plane": "10.0.0.5:7000"}, "engine_id"),
        ({**PLANE, "plane": "10.0.0.5"}, "'10.0.0.5' is not an address"),
        ({**PLANE, "plane": "10.0.0.5:7000,x"}, "'x' is not an address"),
        ({**PLANE, "endpoint": "10.0.0.7:8000"}, "http URL"),
        ({"lease_ttl": "30"}, "must be a number"),
        ({"lease_ttl": True}, "must be a number"),
        ({"lease_ttl": 2}, "min_lease_ttl <= lease_ttl"),
        ({"max_lease_ttl": 20}, "lease_ttl <= max_lease_ttl"),
        ({"progress_thread": 1}, "true or false"),
        ({"progress_delay_us": -1}, "negative"),
        ({"retention_budget": 1.5}, "within 0 to 1"),
        ({"labels": {"zone": 1}}, "object of strings"),
        ({"engine_id": 7}, "must be a string"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], says: str) -> None:
    """Unknown keys, wrong kinds and impossible TTLs are refused with what to change."""
    with pytest.raises(SettingsError, match=says):
        read(**given)


def test_settings_must_be_an_object() -> None:
    """A list in place of the object is refused."""
    with pytest.raises(SettingsError, match="must be an object"):
        read_settings({"kvplane": []}, "kv_both")


def test_no_role_at_all_is_refused() -> None:
    """Without kv_role and role the plane could not tell what the engine serves."""
    with pytest.raises(SettingsError, match="role"):
        read(None)
