import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplane_services.adapters.etcd.keys import KeySpace

KEYS = KeySpace("/kvplane/v1/")
# Lone halves of surrogate pairs too: any text is a key.
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))


@given(ANY_TEXT)
def test_a_key_is_read_back(key: str) -> None:
    """The place of any key names its table and key."""
    assert KEYS.parse(KEYS.value("leases", key)) == ("leases", key)


@given(ANY_TEXT, ANY_TEXT)
def test_keys_have_places_of_their_own(one: str, other: str) -> None:
    """Different keys have different places, none of which is within another's."""
    places = KEYS.value("leases", one), KEYS.value("leases", other)

    assert (places[0] == places[1]) == (one == other)
    assert not places[0].startswith(places[1] + b"/")


@given(ANY_TEXT)
def test_places_are_plain(key: str) -> None:
    """A place has no more slashes than its table's, and nothing that a terminal obeys."""
    place = KEYS.value("leases", key)

    assert place.count(b"/") == 4
    assert all(0x20 < byte < 0x7F for byte in place)


@pytest.mark.parametrize("key", ["a%2Fb", "Az09-_.~:@+=,", "e1.12345"])
def test_ids_look_as_they_are(key: str) -> None:
    """What ids are made of is not escaped, but for the escape itself."""
    assert KEYS.value("leases", key) == b"/kvplane/v1/leases/" + key.replace("%", "%25").encode()


@pytest.mark.parametrize(
    "place",
    [
        b"/kvplane/v1/history",
        b"/kvplane/v1/",
        b"/kvplane/v1/leases/a/b",
        b"/kvplane/v1/leases/%61",
        b"/kvplane/v1/leases/%2f",
        b"/kvplane/v1/leases/%FF",
        b"/kvplane/v1/leases/%",
        b"/kvplane/v1/leases/\xff",
        "/kvplane/v1/leases/é".encode(),
    ],
)
def test_foreign_places_name_nothing(place: bytes) -> None:
    """What this store would not have written there is nobody's key."""
    assert KEYS.parse(place) is None


def test_places_of_the_store_itself() -> None:
    """The history and sequences are no table's values."""
    assert KEYS.is_own(KEYS.history)
    assert KEYS.is_own(KEYS.sequence("tokens"))
    assert not KEYS.is_own(KEYS.value("leases", "history"))


def test_a_prefix_ends_with_a_slash() -> None:
    """Else a plane's keys could begin with those of another."""
    with pytest.raises(ValueError, match="slash"):
        KeySpace("/kvplane")
