"""What API keys may have: turns by weight, and so many tokens a minute over all frontends."""

import json
import subprocess
import sys

import numpy as np
import pytest

from server.requests.admission import Admission, Asked, WaitBudgets
from server.requests.errors import Overloaded
from server.requests.limits import ANYBODY, KeyCeilings, KeyPlaces, KeyShare, KeyShares
from server.settings.api_keys import ApiKey
from wire.page import Page
from wire.vocabulary import RequestClass

THREE = [ApiKey("one", b"1"), ApiKey("two", b"2"), ApiKey("three", b"3", weight=2.0)]
LIMITED = KeyShare(1, tokens_per_minute=100)
MINUTE = 60.0


def places(num_places: int) -> KeyPlaces:
    return KeyPlaces(Page.create(num_frontends=1, num_managers=1, num_models=1, num_keys=num_places))


KEYS = KeyShares(THREE, places(3))


def ceilings(page: Page, frontend: int = 0) -> KeyCeilings:
    return KeyCeilings(page, frontend=frontend)


def a_page() -> Page:
    return Page.create(num_frontends=3, num_managers=1, num_models=1, num_keys=2)


def test_keys_are_known_by_their_names() -> None:
    assert [KEYS.of(name).index for name in ("one", "two", "three")] == [0, 1, 2]
    assert KEYS.of("three").weight == 2.0
    assert KEYS.of("of another file") is ANYBODY
    assert KEYS.are_several
    assert not KeyShares([], places(1)).are_several
    assert KeyShares(THREE[:1], places(4)).are_several


def named(names: str) -> list[ApiKey]:
    return [ApiKey(name, name.encode()) for name in names]


def indices(keys: KeyShares, names: str) -> list[int]:
    return [keys.of(name).index for name in names]


@pytest.mark.holds("API keys")
def test_a_key_keeps_its_place_while_the_file_changes_around_it() -> None:
    keys = KeyShares(named("mno"), places(5))
    keys.renew([ApiKey("o", b"o", weight=4.0, tokens_per_minute=7), *named("xn")])
    assert indices(keys, "onx") == [2, 1, 3]
    assert (keys.of("o").weight, keys.of("o").tokens_per_minute) == (4.0, 7)
    assert keys.of("m") is ANYBODY
    keys.renew(named("anxo"))  # one is put in before the others
    assert indices(keys, "anxo") == [4, 1, 3, 2]


@pytest.mark.holds("API keys")
def test_places_of_keys_that_are_gone_are_the_last_to_be_taken() -> None:
    keys = KeyShares(named("mno"), places(5))
    for version in ("mnoxy", "noxy", "noxyab"):
        keys.renew(named(version))
    assert indices(keys, "noxya") == [1, 2, 3, 4, 0]
    assert indices(keys, "b") == [4], "there is none for it, so it shares the last"


@pytest.mark.holds("API keys")
def test_frontends_agree_on_places_whatever_changes_they_have_seen() -> None:
    """One was asked all the time, one has missed changes, and one has just been restarted."""
    of_page = places(20)
    frontends = [KeyShares(THREE, of_page) for _ in range(2)]
    versions = [named(names) for names in ("xy", "bx", "ab", "cab")]
    for number, version in enumerate(versions):
        frontends[0].renew(version)
        if number % 2:
            frontends[1].renew(version)
    frontends.append(KeyShares(THREE, of_page))
    frontends[2].renew(versions[-1])

    found = [indices(keys, "abc") for keys in frontends]

    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 3


def test_two_processes_that_meet_new_keys_at_once_agree() -> None:
    """Each takes places while it holds the page's lock."""
    page = Page.create(num_frontends=2, num_managers=1, num_models=1, num_keys=40)
    names = [f"key-{number}" for number in range(30)]
    code = (
        "import json; from server.requests.limits import KeyPlaces; from wire.page import Page; "
        f"print(json.dumps(KeyPlaces(Page.attach({page.fd})).of({names!r})))"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, pass_fds=[page.fd])

    mine = KeyPlaces(page).of(names[::-1])

    assert json.loads(other.communicate()[0]) == mine
    assert len(set(mine.values())) == 30


@pytest.mark.holds("API keys")
def test_what_was_let_in_before_a_second_key_came_is_counted_out_after_it() -> None:
    page = Page.create(num_frontends=1, num_managers=1, num_models=1, num_keys=3)
    admission = Admission(page, frontend=0, budgets=WaitBudgets(1, 1), max_requests=1, keys=THREE[:1])
    with admission.admit(Asked(0, RequestClass.INTERACTIVE, 10, key="one")):
        admission.renew_keys(THREE[:2])

    assert not page.admitted_by_key.any()


@pytest.mark.parametrize(
    ("name", "num_tokens", "queued", "ahead"),
    [
        ("one", 10, [0, 0, 0], 1.0),  # nothing waits: there is nothing to share
        ("one", 10, [0, 1000, 0], 0.01),  # as much of the other as its own
        ("one", 10, [90, 1000, 0], 0.19 / 1.09 * 1.0),
        ("two", 10, [0, 1000, 0], 1.0),
        ("one", 5000, [0, 1000, 0], 1.0),  # all there is
        ("one", 10, [0, 0, 1000], 0.02),  # twice its own, by weight
        ("three", 10, [1000, 0, 0], 0.005),
    ],
)
def test_each_key_goes_before_as_much_as_it_has_itself(
    name: str, num_tokens: int, queued: list[int], ahead: float
) -> None:
    turn = KEYS.turn(KEYS.of(name), num_tokens, np.array(queued))
    assert turn.ahead == pytest.approx(ahead)


def test_the_engines_are_shared_by_those_that_have_work() -> None:
    assert KEYS.turn(KEYS.of("one"), 1, np.array([0, 0, 0])).of_engines == 1.0
    assert KEYS.turn(KEYS.of("one"), 1, np.array([0, 5, 0])).of_engines == 0.5
    assert KEYS.turn(KEYS.of("three"), 1, np.array([5, 5, 0])).of_engines == 0.5
    assert KEYS.turn(KEYS.of("two"), 1, np.array([10, 90, 0])).is_over
    assert not KEYS.turn(KEYS.of("one"), 1, np.array([10, 90, 0])).is_over


@pytest.mark.holds("Fair shares")
def test_several_frontends_hold_one_ceiling() -> None:
    page = a_page()
    for frontend in range(3):
        ceilings(page, frontend).spend(LIMITED, 30, MINUTE)
    for frontend in range(3):
        assert not ceilings(page, frontend).seconds_until_room(LIMITED, 10, MINUTE)
        assert ceilings(page, frontend).seconds_until_room(LIMITED, 11, MINUTE)
    assert not page.spent_tokens[:, 0].any()  # another key's


@pytest.mark.parametrize(
    ("spent", "num_tokens", "seconds"),
    [
        ([], 100, 0.0),
        ([(0.0, 100)], 100, 120.0 - 30.0),  # all of it has to be over a minute old
        ([(0.0, 100)], 50, 90.0 - 30.0),
        ([(0.0, 100)], 1, 60.6 - 30.0),
        ([(-30.0, 100)], 50, 0.0),  # a minute old in half
        ([(-30.0, 100)], 75, 15.0),
        ([(-30.0, 100), (10.0, 20)], 50, 12.0),
        ([(-70.0, 1000)], 100, 0.0),  # the minute before the last is forgotten
    ],
)
def test_the_minute_before_counts_as_far_as_it_is_not_over(
    spent: list[tuple[float, int]], num_tokens: int, seconds: float
) -> None:
    page = a_page()
    mine, other = ceilings(page), ceilings(page, 1)
    for at, tokens in spent:
        mine.spend(LIMITED, tokens - 1, 600.0 + at)
        other.spend(LIMITED, 1, 600.0 + at)

    found = mine.seconds_until_room(LIMITED, num_tokens, 630.0)

    assert found == pytest.approx(seconds)
    assert not mine.seconds_until_room(LIMITED, num_tokens, 630.0 + found + 1e-6)
    if found:
        assert mine.seconds_until_room(LIMITED, num_tokens, 630.0 + found - 0.1)


@pytest.mark.holds("Fair shares")
@pytest.mark.parametrize(
    ("spent", "remaining", "reset"),
    [
        ([], 100, 0.0),
        ([(0.0, 30)], 70, 90.0),  # until the minute after this one has begun
        ([(-30.0, 31)], 84, 30.0),  # of 31 tokens, 15.5 count: half a token is not there to be sent
        ([(-30.0, 100), (10.0, 20)], 30, 90.0),
        ([(0.0, 150)], 0, 90.0),  # an estimate was too low
    ],
)
def test_what_a_key_may_still_send(spent: list[tuple[float, int]], remaining: int, reset: float) -> None:
    page = a_page()
    for at, tokens in spent:
        ceilings(page, 2).spend(LIMITED, tokens, 600.0 + at)

    found = ceilings(page).allowance(LIMITED, 630.0)

    assert (found.limit, found.remaining) == (100, remaining)
    assert found.reset_seconds == pytest.approx(reset)
    if remaining:
        assert not ceilings(page).seconds_until_room(LIMITED, remaining, 630.0), "so many it may send at once"


def test_what_was_estimated_too_high_is_given_back() -> None:
    mine = ceilings(a_page())
    mine.spend(LIMITED, 100, MINUTE)
    assert mine.seconds_until_room(LIMITED, 10, MINUTE)
    mine.spend(LIMITED, -50, MINUTE)
    assert not mine.seconds_until_room(LIMITED, 10, MINUTE)


def test_over_an_hour_a_key_gets_what_its_ceiling_says() -> None:
    """It asks all the time, for more than it may have."""
    mine, got, now = ceilings(a_page()), 0, 0.0
    while now < 3600:
        if not mine.seconds_until_room(LIMITED, 7, now):
            mine.spend(LIMITED, 7, now)
            got += 7
        now += 0.5
    assert 0.9 * 6000 <= got <= 6000


@pytest.mark.holds("API keys")
def test_a_key_does_not_inherit_what_another_has_spent() -> None:
    """It has the place of a key that is gone, of which a request is still open."""
    page = Page.create(num_frontends=2, num_managers=1, num_models=1, num_keys=2)
    keys = {name: ApiKey(name, name.encode(), tokens_per_minute=100) for name in ("old", "kept", "new")}
    before, after = [keys["old"], keys["kept"]], [keys["new"], keys["kept"]]
    frontends = [
        Admission(page, frontend=index, budgets=WaitBudgets(1, 1), max_requests=9, keys=before, clock=lambda: MINUTE)
        for index in range(2)
    ]
    for frontend in frontends:
        for name in ("old", "kept"):
            with frontend.admit(Asked(0, RequestClass.INTERACTIVE, 40, key=name)):
                pass
    with frontends[0].admit(Asked(0, RequestClass.INTERACTIVE, 10, key="old")) as admitted:
        for frontend in frontends:
            frontend.renew_keys(after)
        admitted.correct(90)

    with pytest.raises(Overloaded):
        frontends[0].admit(Asked(0, RequestClass.INTERACTIVE, 40, key="kept"))
    frontends[1].admit(Asked(0, RequestClass.INTERACTIVE, 100, key="new"))
    with pytest.raises(Overloaded):
        frontends[0].admit(Asked(0, RequestClass.INTERACTIVE, 1, key="new"))
