"""One PostgreSQL for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.server.backfill.postgres import Postgres, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server
