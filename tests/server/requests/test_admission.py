"""The door: who comes in, by what waits and how fast it goes, and that nothing stays reserved."""

import contextlib

import pytest

from server.requests.admission import Admission, WaitBudgets
from server.requests.errors import Overloaded
from wire.page import Page
from wire.vocabulary import RequestClass

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK
BUDGETS = WaitBudgets(interactive=2.0, bulk=20.0)


def a_page() -> Page:
    page = Page.create(num_frontends=2, num_managers=2, num_models=2)
    page.tokens_per_second[0, 0] = 600
    page.tokens_per_second[1, 0] = 400  # a thousand together
    return page


def a_door(page: Page, *, max_requests: int = 100) -> Admission:
    return Admission(page, frontend=0, budgets=BUDGETS, max_requests=max_requests)


@pytest.mark.holds("Back-pressure")
@pytest.mark.parametrize(
    ("queued", "request_class", "wait"),
    [
        ({INTERACTIVE: 2000}, INTERACTIVE, None),  # exactly the budget
        ({INTERACTIVE: 2500}, INTERACTIVE, 0.5),
        ({BULK: 1_000_000}, INTERACTIVE, None),  # interactive goes before bulk
        ({INTERACTIVE: 2500}, BULK, None),
        ({INTERACTIVE: 5000, BULK: 15000}, BULK, None),
        ({INTERACTIVE: 5000, BULK: 16000}, BULK, 1.0),
    ],
)
def test_the_wait_for_what_is_ahead_is_held_against_the_budget(
    queued: dict[RequestClass, int], request_class: RequestClass, wait: float | None
) -> None:
    page = a_page()
    for waiting, num_tokens in queued.items():
        page.queued_tokens[0, 0, waiting] = num_tokens // 2  # over both batch managers
        page.queued_tokens[1, 0, waiting] = num_tokens - num_tokens // 2

    if wait is None:
        a_door(page).check(0, request_class)
    else:
        with pytest.raises(Overloaded) as refused:
            a_door(page).check(0, request_class)
        assert refused.value.retry_after == pytest.approx(wait)


@pytest.mark.holds("Back-pressure")
def test_what_other_frontends_have_admitted_counts() -> None:
    page = a_page()
    page.admitted_tokens[1, 0, INTERACTIVE] = 2500

    with pytest.raises(Overloaded):
        a_door(page).check(0, INTERACTIVE)


def test_each_model_has_its_own_queue() -> None:
    page = a_page()
    page.tokens_per_second[0, 1] = 1000
    page.queued_tokens[0, 1] = 1_000_000

    a_door(page).check(0, BULK)
    with pytest.raises(Overloaded):
        a_door(page).check(1, BULK)


def test_before_a_rate_is_known_nobody_is_refused() -> None:
    page = a_page()
    page.tokens_per_second[:] = 0
    page.queued_tokens[:] = 1_000_000

    a_door(page).check(0, INTERACTIVE)


def test_what_is_reserved_is_seen_by_all_and_always_returned() -> None:
    page = a_page()
    door = a_door(page)

    with door.reserved(0, BULK, 30):
        with contextlib.suppress(KeyError), door.reserved(0, BULK, 12):
            assert page.admitted_tokens[0, 0].tolist() == [0, 42]
            raise KeyError
        assert page.admitted_tokens[0, 0].tolist() == [0, 30]

    assert not page.admitted_tokens.any()


def test_only_so_many_requests_are_open() -> None:
    door = a_door(a_page(), max_requests=2)

    with door.open_request():
        with contextlib.suppress(KeyError), door.open_request():
            door.check_open()
            with door.open_request(), pytest.raises(Overloaded, match="--max-concurrent-requests") as refused:
                door.check_open()
            assert refused.value.retry_after
            raise KeyError
        with door.open_request():
            door.check_open()


def test_the_estimate_follows_what_tokenizing_gives() -> None:
    door = a_door(a_page())
    assert door.estimate(0, num_characters=400, num_texts=1) == 102

    for _ in range(200):
        door.learn(0, num_characters=100, num_tokens=100)  # a language of one token a character
        door.learn(0, num_characters=0, num_tokens=2)  # says nothing

    assert 395 <= door.estimate(0, num_characters=400, num_texts=1) <= 402
    assert door.estimate(1, num_characters=400, num_texts=1) == 102  # another model's
