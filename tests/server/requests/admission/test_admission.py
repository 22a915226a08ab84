"""The door: who comes in, by what waits and how fast it goes, and that nothing stays counted."""

import contextlib
from typing import Any

import pytest

from server.requests.admission import Admission, Asked, ModelPage, WaitBudgets
from server.requests.errors import InvalidRequest, Overloaded
from server.settings.api_keys import ApiKey
from wire.page import Page
from wire.vocabulary import RequestClass

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK
BUDGETS = WaitBudgets(interactive=2.0, bulk=20.0)
NOW = 5000.0
KEYS = [ApiKey("light", b"1"), ApiKey("greedy", b"2"), ApiKey("heavy", b"3", weight=3.0)]


def a_page(*, num_keys: int = 1) -> Page:
    page = Page.create(num_frontends=2, num_managers=2, num_models=2, num_keys=num_keys)
    page.tokens_per_second[0, 0] = 600
    page.tokens_per_second[1, 0] = 400  # a thousand together
    page.last_batch_at[:] = NOW - 0.1
    return page


def a_door(page: Page, *, max_requests: int = 100, keys: list[ApiKey] | None = None) -> Admission:
    return Admission(page, frontend=0, budgets=BUDGETS, max_requests=max_requests, keys=keys or [], clock=lambda: NOW)


def asked(request_class: RequestClass = INTERACTIVE, num_tokens: int = 10, **more: Any) -> Asked:
    return Asked(**{"model": 0, "request_class": request_class, "num_tokens": num_tokens, **more})


def admit(door: Admission, *args: Any, **more: Any) -> None:
    with door.admit(asked(*args, **more)):
        pass


def refusal(door: Admission, *args: Any, **more: Any) -> Overloaded:
    with pytest.raises(Overloaded) as refused:
        admit(door, *args, **more)
    return refused.value


@pytest.mark.holds("Back-pressure")
@pytest.mark.parametrize(
    ("admitted", "request_class", "wait"),
    [
        ({INTERACTIVE: 2000}, INTERACTIVE, None),  # exactly the budget
        ({INTERACTIVE: 2500}, INTERACTIVE, 0.5),
        ({BULK: 1_000_000}, INTERACTIVE, None),  # interactive goes before bulk
        ({INTERACTIVE: 1750, BULK: 1_000_000}, INTERACTIVE, 0.5),  # but bulk keeps three tenths of each batch
        ({INTERACTIVE: 1750, BULK: 500}, INTERACTIVE, 0.25),  # or all it has
        ({INTERACTIVE: 2500}, BULK, None),
        ({INTERACTIVE: 5000, BULK: 15000}, BULK, None),
        ({INTERACTIVE: 5000, BULK: 16000}, BULK, 1.0),
    ],
)
def test_the_wait_for_what_is_ahead_is_held_against_the_budget(
    admitted: dict[RequestClass, int], request_class: RequestClass, wait: float | None
) -> None:
    page = a_page()
    for waiting, num_tokens in admitted.items():
        page.admitted_tokens[0, 0, waiting] = num_tokens // 2  # by both frontends
        page.admitted_tokens[1, 0, waiting] = num_tokens - num_tokens // 2

    if wait is None:
        admit(a_door(page), request_class, 1_000_000)  # its own tokens don't count
    else:
        refused = refusal(a_door(page), request_class)
        assert refused.retry_after == pytest.approx(wait)
        assert refused.reason == "wait"


def test_what_engines_compute_counts_only_until_they_are_done() -> None:
    page = a_page()
    page.admitted_tokens[1, 0, INTERACTIVE] = 3000
    page.computing_tokens[:, 0, INTERACTIVE] = [1000, 500]
    page.free_at[:, 0, INTERACTIVE] = [NOW + 0.5, NOW - 3]  # 0.3 s of all engines' time
    page.free_at[:, 0, BULK] = NOW + 100

    admit(a_door(page))  # 1.5 s for what waits, and those
    page.free_at[0, 0, INTERACTIVE] = NOW + 1.0
    assert refusal(a_door(page)).retry_after == pytest.approx(0.1)


def test_each_model_has_its_own_queue() -> None:
    page = a_page()
    page.tokens_per_second[0, 1] = 1000
    page.admitted_tokens[0, 1] = 1_000_000

    admit(a_door(page), BULK)
    refusal(a_door(page), BULK, model=1)


def test_before_a_rate_is_known_nobody_is_refused() -> None:
    page = a_page()
    page.tokens_per_second[:] = 0
    page.admitted_tokens[:] = 1_000_000

    admit(a_door(page), deadline=NOW + 0.001)


@pytest.mark.holds("Deadlines", "Back-pressure")
@pytest.mark.parametrize(
    ("admitted", "num_tokens", "batch_seconds", "left", "over"),
    [
        (500, 100, 0.25, 1.0, None),  # half a second of work, a batch of a quarter
        (500, 100, 0.25, 0.7, 0.125),  # a tenth more than is expected has to fit
        (500, 100, 0.0, 1.0, 0.21),  # how long batches take is not known: all that waits may be one
        (100, 1000, 0.25, 1.0, 0.21),  # its own tokens alone take a second
        (0, 400, 0.25, 0.4, 0.04),
        (1500, 10, 0.25, 100.0, None),
        (2500, 10, 0.25, 100.0, 0.5),  # the budget holds whatever the deadline
    ],
)
def test_a_deadline_that_cannot_be_met_is_refused_at_once(
    admitted: int, num_tokens: int, batch_seconds: float, left: float, over: float | None
) -> None:
    page = a_page()
    page.batch_seconds[0, 0] = batch_seconds
    page.admitted_tokens[1, 0, INTERACTIVE] = admitted

    if over is None:
        admit(a_door(page), num_tokens=num_tokens, deadline=NOW + left)
    else:
        refused = refusal(a_door(page), num_tokens=num_tokens, deadline=NOW + left)
        assert refused.retry_after == pytest.approx(over)
        assert refused.reason == ("wait" if admitted > 2000 else "deadline_wait")


@pytest.mark.holds("Deadlines")
@pytest.mark.parametrize(("num_seqs", "over"), [(1, 1.1 * 2.0 - 1.0), (2, 0.1), (3, None), (100, None)])
def test_a_sequence_is_computed_by_one_stream_however_many_there_are(num_seqs: int, over: float | None) -> None:
    page = a_page()
    page.tokens_per_second[:, 0], page.streams[:, 0] = [900, 300], [3, 1]  # 300 each

    if over is None:
        admit(a_door(page), num_tokens=600, deadline=NOW + 1.0, num_seqs=num_seqs)
    else:
        refused = refusal(a_door(page), num_tokens=600, deadline=NOW + 1.0, num_seqs=num_seqs)
        assert refused.reason == "deadline_wait"
        assert refused.retry_after == pytest.approx(over)


def test_an_idle_engine_is_tried_where_its_speed_is_old_news() -> None:
    """Else a rate from a bad moment would keep everybody out for ever."""
    page = a_page()
    page.last_batch_at[:] = NOW - 1
    admit(a_door(page), num_tokens=10_000, deadline=NOW + 0.1)

    page.admitted_tokens[1, 0, INTERACTIVE] = 1  # somebody is trying already
    refusal(a_door(page), num_tokens=10_000, deadline=NOW + 0.1)


def test_a_deadline_that_has_passed_is_not_overload() -> None:
    page = a_page()
    page.admitted_tokens[1, 0, INTERACTIVE] = 500
    admit(a_door(page), deadline=NOW - 1)  # the pipeline answers with 504


@pytest.mark.holds("Back-pressure")
def test_what_is_admitted_counts_for_all_until_it_is_answered() -> None:
    page = a_page(num_keys=3)
    door = a_door(page, keys=KEYS)

    with door.admit(Asked(0, BULK, 30, key="greedy")) as admitted:
        with contextlib.suppress(KeyError), door.admit(Asked(0, BULK, 12, key="light")):
            assert page.admitted_tokens[0, 0].tolist() == [0, 42]
            assert page.admitted_by_key[0, 0, BULK].tolist() == [12, 30, 0]
            raise KeyError
        admitted.correct(35)
        assert page.admitted_tokens[0, 0].tolist() == [0, 35]
        assert page.admitted_by_key[0, 0, BULK].tolist() == [0, 35, 0]

    assert not page.admitted_tokens.any()
    assert not page.admitted_by_key.any()


@pytest.mark.holds("Fair shares")
def test_who_has_little_waiting_is_let_in_when_another_key_is_not() -> None:
    page = a_page(num_keys=3)
    page.admitted_tokens[1, 0, INTERACTIVE] = 3000
    page.admitted_by_key[1, 0, INTERACTIVE] = [100, 2900, 0]
    door = a_door(page, keys=KEYS)

    for key in ("light", "heavy"):
        admit(door, key=key)
    refused = refusal(door, key="greedy")
    assert refused.reason == "key_share"


def test_who_asks_again_and_again_pushes_only_its_own_return_back() -> None:
    page = a_page(num_keys=3)
    page.admitted_tokens[1, 0, INTERACTIVE] = 3000
    page.admitted_by_key[1, 0, INTERACTIVE] = [1500, 1500, 0]
    door = a_door(page, keys=KEYS)

    rude = [refusal(door, num_tokens=1000, key="greedy").retry_after or 0.0 for _ in range(50)]
    assert max(rude) > 100
    assert refusal(door, num_tokens=1000, key="light").retry_after == rude[0]


def test_keys_that_wait_alike_are_refused_alike() -> None:
    page = a_page(num_keys=3)
    page.admitted_tokens[1, 0, INTERACTIVE] = 3000
    page.admitted_by_key[1, 0, INTERACTIVE] = [1500, 1500, 0]
    door = a_door(page, keys=KEYS)

    assert [refusal(door, key=key).reason for key in ("light", "greedy")] == ["wait", "wait"]


@pytest.mark.holds("Fair shares")
def test_a_key_has_a_ceiling() -> None:
    page = a_page()
    door = a_door(page, keys=[ApiKey("limited", b"1", tokens_per_minute=100)])

    with door.admit(Asked(0, INTERACTIVE, 40, key="limited")) as admitted:
        admitted.correct(60)
    refused = refusal(door, num_tokens=41, key="limited")
    assert (refused.reason, "100 tokens a minute" in refused.message) == ("key_limit", True)
    # the minute of NOW ends in 40 s; a second later a sixtieth of its 60 tokens is forgotten
    assert refused.retry_after == pytest.approx(41)
    admit(door, num_tokens=40, key="limited")
    with pytest.raises(InvalidRequest, match="which is 100"):
        admit(door, num_tokens=101, key="limited")


def test_the_estimate_follows_what_tokenizing_gives() -> None:
    door = a_door(a_page())
    assert door.estimate(0, num_characters=400, num_texts=1) == 102

    for _ in range(200):
        door.learn(0, num_characters=100, num_tokens=100)  # a language of one token a character
        door.learn(0, num_characters=0, num_tokens=2)  # says nothing

    assert 395 <= door.estimate(0, num_characters=400, num_texts=1) <= 402
    assert door.estimate(1, num_characters=400, num_texts=1) == 102  # another model's


@pytest.mark.holds("Back-pressure")
@pytest.mark.parametrize("request_class", [INTERACTIVE, BULK])
def test_what_waits_for_room_is_ahead_only_of_what_waits_there_too(request_class: RequestClass) -> None:
    page = a_page()
    door = a_door(page)

    with door.admit(asked(request_class, 30_000)) as admitted:
        with admitted.kept_back():
            assert not page.admitted_tokens.any()
            admit(door, request_class)
            admit(door, request_class, deadline=NOW + 0.1)
            refused = refusal(door, request_class, needs_memory=True)
            assert refused.retry_after == pytest.approx(30.0 - BUDGETS[request_class])
            assert refusal(door, request_class, needs_memory=True, deadline=NOW + 29.0).reason == "wait"
        refusal(door, request_class)

    assert not page.admitted_tokens.any()
    assert not page.kept_back_tokens.any()


@pytest.mark.holds("Deadlines")
def test_a_deadline_counts_what_waits_for_room_before_it() -> None:
    page = a_page()
    page.kept_back_tokens[1, 0, INTERACTIVE] = 1500
    door = a_door(page)

    admit(door, needs_memory=True)
    admit(door, deadline=NOW + 1.0)
    assert refusal(door, needs_memory=True, deadline=NOW + 1.0).reason == "deadline_wait"


@pytest.mark.holds("Fair shares")
def test_a_key_with_little_that_waits_for_room_is_let_in() -> None:
    page = a_page(num_keys=3)
    page.kept_back_tokens[1, 0, INTERACTIVE] = [100, 2900, 0]
    door = a_door(page, keys=KEYS)

    admit(door, key="light", needs_memory=True)
    assert refusal(door, key="greedy", needs_memory=True).reason == "key_share"
    admit(door, key="greedy")


SHORT = {"num_characters": 1, "num_tokens": 3, "num_texts": 1}  # one letter between two special tokens
USUAL = {"num_characters": 1632, "num_tokens": 410, "num_texts": 1}
TWO_KEYS = [ApiKey("letters", b"1"), ApiKey("limited", b"2", tokens_per_minute=1000)]


def estimated(door: Admission, key: str) -> int:
    return door.estimate(0, num_characters=1632, num_texts=1, key=key)


@pytest.mark.holds("Fair shares")
@pytest.mark.parametrize("learnt", [SHORT, {**SHORT, "num_texts": 0, "num_tokens": 1}, {**SHORT, "num_tokens": 8}])
def test_short_texts_say_little(learnt: dict[str, int]) -> None:
    door = a_door(a_page(num_keys=3), keys=TWO_KEYS)
    for _ in range(25):
        door.learn(0, **learnt, key="letters")
    assert estimated(door, "limited") < 2 * 410


@pytest.mark.holds("Fair shares")
def test_a_key_with_a_history_is_estimated_by_it_alone() -> None:
    door = a_door(a_page(num_keys=3), keys=TWO_KEYS)
    for _ in range(20):
        door.learn(0, **USUAL, key="limited")
    for _ in range(1000):
        door.learn(0, num_characters=5000, num_tokens=9000, num_texts=1, key="letters")
    assert 405 <= estimated(door, "limited") <= 415
    assert estimated(door, "letters") > 2500
    door.renew_keys([TWO_KEYS[1]])
    assert estimated(door, "letters") == estimated(door, "") > 2500  # what was known of a key goes with it


@pytest.mark.holds("Fair shares")
def test_an_estimate_refuses_nothing_for_good() -> None:
    door = a_door(a_page(num_keys=3), keys=TWO_KEYS)

    def limited(num_tokens: int) -> Asked:
        return Asked(0, INTERACTIVE, num_tokens, key="limited", least_tokens=0)

    with door.admit(limited(5000)) as admitted:
        assert refusal(door, num_tokens=1, key="limited").reason == "key_limit"  # for now it counts as all there is
        admitted.correct(408)
    admit(door, num_tokens=592, key="limited")  # and then as what it is
    assert isinstance(refusal(door, num_tokens=5000, key="limited", least_tokens=1000), Overloaded)
    with pytest.raises(InvalidRequest, match="which is 1000"):
        door.admit(Asked(0, INTERACTIVE, 5000, key="limited", least_tokens=1001))


@pytest.mark.holds("Fair shares")
@pytest.mark.parametrize("estimate", [10, 5000])
def test_what_is_tokenized_and_too_much_for_the_key_is_refused_and_spends_nothing(estimate: int) -> None:
    door = a_door(page := a_page(num_keys=3), keys=TWO_KEYS)
    with (
        pytest.raises(InvalidRequest, match="which is 1000") as refused,
        door.admit(Asked(0, INTERACTIVE, estimate, key="limited", least_tokens=0)) as admitted,
    ):
        admitted.correct(1001)
    assert refused.value.reason == "key_limit"
    assert not page.admitted_tokens.any()
    admit(door, num_tokens=1000, key="limited")


@pytest.mark.parametrize("request_class", RequestClass)
@pytest.mark.parametrize("admitted", [0, 5])
@pytest.mark.parametrize("free_at", [0.0, NOW, NOW + 0.5])
def test_idle_is_what_the_long_count_finds(request_class: RequestClass, admitted: int, free_at: float) -> None:
    """A request that nothing is ahead of comes in without it."""
    page = a_page()
    page.admitted_tokens[1, 0, BULK] = admitted
    page.admitted_tokens[0, 1] = 7  # another model's
    page.free_at[1, 0] = free_at
    model = ModelPage(page, 0)
    ahead = model.ahead(request_class, NOW)
    assert model.is_idle(request_class, NOW) == (ahead.is_idle and not ahead.busy_seconds)
