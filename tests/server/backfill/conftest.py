"""One PostgreSQL for all tests of this folder, and the places that OUT may be."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.server.backfill.jobs import Backfill, Place, options, run, texts, url_of, write_jsonl
from tests.server.backfill.postgres import Postgres, running_postgres
from tests.server_e2e.running import Server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """OUT that is a folder, and not there yet."""
    return tmp_path / "out"


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """IN with as many texts as the test's file says."""
    return write_jsonl(tmp_path / "in.jsonl", texts(request.module.COUNT))


@pytest.fixture
def backfill(source: Path, fake_server: Server) -> Backfill:
    """Runs a job over IN into an OUT; the exit code."""
    return lambda out, **changed: run(options(source, out, **changed), url_of(fake_server))


@pytest.fixture
def store() -> Iterator[Place]:
    """OUT on an object store, which is in this process."""
    prefix = f"/{uuid.uuid4()}"
    yield Place(f"memory:/{prefix}/out")
    memory = fsspec.filesystem("memory")
    if memory.exists(prefix):
        memory.rm(prefix, recursive=True)


@pytest.fixture(params=["folder", "store"])
def out(request: pytest.FixtureRequest) -> Place:
    """OUT of either kind."""
    return Place(str(request.getfixturevalue(request.param)))
