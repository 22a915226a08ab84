"""Every process that maps the page sees what its writer wrote."""

import os

import pytest

from wire.page import Page
from wire.vocabulary import RequestClass


@pytest.mark.holds("No two arrays of the shared page overlap")
def test_a_second_mapping_sees_every_array() -> None:
    page = Page.create(num_frontends=3, num_managers=2, num_models=2, num_keys=4)
    other = Page.attach(page.fd)
    page.queued_tokens[1, 0, RequestClass.BULK] = 7
    page.tokens_per_second[0, 1] = 2.5
    page.engines_ready[1, 1] = 1
    page.oldest_since[0, 0, 0] = 9.5
    page.last_batch_at[1, 0] = 3.25
    page.admitted_tokens[2, 1, 1] = -4
    page.computing_tokens[1, 1, 1] = 11
    page.free_at[0, 0, 1] = 12.5
    page.batch_seconds[1, 1] = 0.25
    page.admitted_by_key[2, 1, 1, 3] = 13
    page.spent_minute[0, 0] = 14
    page.spent_tokens[1, 2] = 15
    page.spent_before[2, 3] = 16
    page.streams[1, 1] = 17
    page.key_names[3] = 18
    page.num_connections[1] = 17
    page.kept_back_tokens[2, 1, 1, 3] = 19
    page.published_at[1] = 20.5

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
        (other.computing_tokens, 11),
        (other.free_at, 12.5),
        (other.batch_seconds, 0.25),
        (other.admitted_by_key, 13),
        (other.spent_minute, 14),
        (other.spent_tokens, 15),
        (other.spent_before, 16),
        (other.streams, 17),
        (other.key_names, 18),
        (other.num_connections, 17),
        (other.kept_back_tokens, 19),
        (other.published_at, 20.5),
    ):
        assert cells.sum() == total


def test_a_dead_process_is_forgotten() -> None:
    page = Page.create(num_frontends=2, num_managers=2, num_models=1, num_keys=2)
    page.queued_tokens[:] = 5
    page.computing_tokens[:] = 4
    page.free_at[:] = 9.5
    page.engines_ready[:] = 1
    page.admitted_tokens[:] = 3
    page.admitted_by_key[:] = 2
    page.kept_back_tokens[:] = 1
    page.spent_tokens[:] = 8
    page.num_connections[:] = 6

    page.clear_manager(0)
    page.clear_frontend(1)

    assert page.queued_tokens.sum(axis=(1, 2)).tolist() == [0, 10]
    assert page.engines_ready.sum(axis=1).tolist() == [0, 1]
    assert page.computing_tokens.sum(axis=(1, 2)).tolist() == [0, 8]
    assert page.free_at.sum(axis=(1, 2)).tolist() == [0, 19]
    assert page.admitted_tokens.sum(axis=(1, 2)).tolist() == [6, 0]
    assert page.admitted_by_key.sum(axis=(1, 2, 3)).tolist() == [8, 0]
    assert page.kept_back_tokens.sum(axis=(1, 2, 3)).tolist() == [4, 0]
    assert page.num_connections.tolist() == [6, 0]
    assert page.spent_tokens.sum(axis=1).tolist() == [16, 16]  # its successor goes on with it


def test_another_file_is_no_page() -> None:
    fd = os.memfd_create("not-a-page")
    os.ftruncate(fd, 4096)

    with pytest.raises(ValueError, match="not a shared page"):
        Page.attach(fd)
    os.close(fd)


def test_a_page_that_is_given_up_keeps_no_descriptor() -> None:
    page = Page.create(num_frontends=1, num_managers=1, num_models=1)
    fd, cells = page.fd, page.queued_tokens
    del page
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert cells.sum() == 0  # the memory stays as long as somebody looks at it
