"""Every process that maps the page sees what its writer wrote."""

import os

import pytest

from wire.page import Page
from wire.vocabulary import RequestClass


@pytest.mark.holds("No two arrays of the shared page overlap")
def test_a_second_mapping_sees_every_array() -> None:
    page = Page.create(num_frontends=3, num_managers=2, num_models=2)
    other = Page.attach(page.fd)
    page.queued_tokens[1, 0, RequestClass.BULK] = 7
    page.tokens_per_second[0, 1] = 2.5
    page.engines_ready[1, 1] = 1
    page.oldest_since[0, 0, 0] = 9.5
    page.last_batch_at[1, 0] = 3.25
    page.admitted_tokens[2, 1, 1] = -4

    assert other.queued_tokens[1, 0, RequestClass.BULK] == 7
    assert other.tokens_per_second[0, 1] == 2.5
    assert other.engines_ready[1, 1] == 1
    assert other.oldest_since[0, 0, 0] == 9.5
    assert other.last_batch_at[1, 0] == 3.25
    assert other.admitted_tokens[2, 1, 1] == -4
    # nothing overlaps: each array holds exactly the one number written to it
    for cells, total in (
        (other.queued_tokens, 7),
        (other.tokens_per_second, 2.5),
        (other.engines_ready, 1),
        (other.oldest_since, 9.5),
        (other.last_batch_at, 3.25),
        (other.admitted_tokens, -4),
    ):
        assert cells.sum() == total


def test_a_dead_process_is_forgotten() -> None:
    page = Page.create(num_frontends=2, num_managers=2, num_models=1)
    page.queued_tokens[:] = 5
    page.engines_ready[:] = 1
    page.admitted_tokens[:] = 3

    page.clear_manager(0)
    page.clear_frontend(1)

    assert page.queued_tokens.sum(axis=(1, 2)).tolist() == [0, 10]
    assert page.engines_ready.sum(axis=1).tolist() == [0, 1]
    assert page.admitted_tokens.sum(axis=(1, 2)).tolist() == [6, 0]


def test_another_file_is_no_page() -> None:
    fd = os.memfd_create("not-a-page")
    os.ftruncate(fd, 4096)

    with pytest.raises(ValueError, match="not a shared page"):
        Page.attach(fd)
    os.close(fd)
