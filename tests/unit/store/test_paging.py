import pytest

from kvplane_services.errors import InvalidRequest
from kvplane_services.store.paging import Page, PageRequest


def page_of(
    names: list[str], size: int, token: str = "", filters: tuple[str, ...] = ()
) -> Page[str]:
    return PageRequest(size, token).take(names, key=str, filters=filters, revision=7)


def test_pages_cover_everything_once() -> None:
    """Following the tokens shows each item once, in order."""
    names = [f"n{number:03}" for number in range(25)]
    seen: list[str] = []
    token = ""
    while True:
        page = page_of(names, 10, token)
        seen.extend(page.items)
        token = page.next_token
        if not token:
            break

    assert names == seen


def test_last_page_has_no_token_even_if_it_is_full() -> None:
    """A page that ends exactly at the last item is the last."""
    assert page_of(["a", "b"], 2).next_token == ""


def test_items_that_come_and_go_do_not_shift_pages() -> None:
    """An item that stays is shown once though others before it come and go."""
    first = page_of(["b", "c", "d"], 2)

    second = page_of(["a", "c", "d"], 2, first.next_token)

    assert second.items == ("d",)


def test_default_size() -> None:
    """Size 0 means 100."""
    assert len(page_of([str(number) for number in range(150)], 0).items) == 100


@pytest.mark.parametrize("size", [-1, 1001])
def test_sizes_out_of_bounds(size: int) -> None:
    """A size that is negative or too large is refused, by the name of its field."""
    with pytest.raises(InvalidRequest) as refused:
        page_of([], size)

    assert refused.value.field == "page_size"


@pytest.mark.parametrize("token", ["x", "bm90IGpzb24=", "eyJhIjoxfQ==", "é", "W10="])
def test_broken_tokens(token: str) -> None:
    """A token that no page gave is refused, by the name of its field."""
    with pytest.raises(InvalidRequest) as refused:
        page_of(["a"], 1, token)

    assert refused.value.field == "page_token"


def test_tokens_are_good_for_their_filters_only() -> None:
    """A token of one listing is refused in another."""
    token = page_of(["a", "b"], 1, filters=("x",)).next_token

    with pytest.raises(InvalidRequest):
        page_of(["a", "b"], 1, token, filters=("y",))
