"""Every process that maps the page sees what its writer wrote."""

import os
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from wire.page import Page


def arrays(page: Page) -> dict[str, NDArray[Any]]:
    return {name: cells for name, cells in vars(page).items() if isinstance(cells, np.ndarray)}


@pytest.mark.holds("No two arrays of the shared page overlap")
def test_a_second_mapping_sees_every_array() -> None:
    page = Page.create(num_frontends=3, num_managers=2, num_models=2, num_keys=4)
    other, written = arrays(Page.attach(page.fd)), {}
    for number, (name, cells) in enumerate(arrays(page).items()):
        written[name] = 1000 * number + np.arange(cells.size).reshape(cells.shape)
        cells[:] = written[name]
    assert other.keys() == written.keys()
    assert all(np.array_equal(other[name], cells) for name, cells in written.items())


OF_MANAGERS = {"queued_tokens", "computing_tokens", "engines_ready", "oldest_since", "free_at", "published_at"}
OF_FRONTENDS = {"admitted_tokens", "admitted_by_key", "kept_back_tokens", "num_connections"}


def test_a_dead_process_is_forgotten() -> None:
    """But not what keys have spent, and how fast engines are: its successor goes on with that."""
    page = Page.create(num_frontends=2, num_managers=2, num_models=1, num_keys=2)
    for cells in arrays(page).values():
        cells[:] = 5
    page.clear_manager(0)
    page.clear_frontend(1)
    for name, cells in arrays(page).items():
        cleared = 0 if name in OF_MANAGERS else 1 if name in OF_FRONTENDS else None
        for index, row in enumerate(cells):
            assert (row == (0 if index == cleared else 5)).all(), name


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
