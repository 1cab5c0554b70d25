"""Resource names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplane.client import (
    SessionKey,
    engine_name,
    lease_name,
    parse_session_name,
    session_name,
)
from kvplane_services.session.model import SessionKey as ServiceKey

part = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@given(tenant=part, model=part, adapter=st.one_of(st.just(""), part), session_id=part)
def test_client_and_services_name_sessions_alike(
    tenant: str, model: str, adapter: str, session_id: str
) -> None:
    """Both sides escape alike and read each other's names, whatever the parts hold."""
    name = session_name(tenant, model, adapter, session_id)
    theirs = ServiceKey(tenant, model, adapter, session_id)
    assert name == theirs.name
    assert name.count(":") == 3
    assert parse_session_name(name) == (tenant, model, adapter, session_id)
    assert ServiceKey.parse(name) == theirs


def test_key_knows_its_name() -> None:
    """A key and its parts give the same name."""
    key = SessionKey("default", "org/model", "", "a:b/c d")
    assert key.name == "sessions/default:org%2Fmodel::a%3Ab%2Fc%20d"
    assert parse_session_name(key.name) == key


@pytest.mark.parametrize(
    "name", ["", "x", "engines/a:b:c:d", "sessions/a:b:c", "sessions/a:b:c:d:e"]
)
def test_what_is_no_session_is_refused(name: str) -> None:
    """A name of another kind or with other parts raises, and the error says what is expected."""
    with pytest.raises(ValueError, match="expected sessions/"):
        parse_session_name(name)


def test_short_names_are_completed() -> None:
    """An id alone stands for the full name; a full name stays."""
    assert engine_name("decode-0") == engine_name("engines/decode-0") == "engines/decode-0"
    assert lease_name("ab") == lease_name("leases/ab") == "leases/ab"
