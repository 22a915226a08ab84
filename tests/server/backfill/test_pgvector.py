"""Jobs into a real PostgreSQL: each row once and exact, and what is not as it should be is refused by its name."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from embedline.client.preference import CancellationToken
from server.features.backfill import sinks
from server.features.backfill.errors import BackfillError, RefusedJob
from server.features.backfill.job import Job
from server.features.backfill.pgvector import PgvectorSink
from tests.server.backfill.jobs import (
    BAD,
    Backfill,
    command,
    end,
    errors,
    kill_amid,
    options,
    run,
    texts,
    url_of,
    write_jsonl,
)
from tests.server.backfill.postgres import Postgres
from tests.server_e2e.expected import DIMENSIONS, ids_of, row_of_ids
from tests.server_e2e.running import Server

COUNT = 230
Query = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.database()


@pytest.fixture
def query(url: str) -> Query:
    def ask(statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    return ask


def into(url: str, **changed: Any) -> dict[str, Any]:
    """Options of a job into that database."""
    return {"sink": url, "format": "pgvector", **changed}


def check(query: Query, *, count: int = COUNT) -> None:
    """Every row of the input is there, exact, and null where it can't be embedded."""
    rows = query("SELECT id, embedding::text FROM embeddings ORDER BY substr(id, 2)::int")
    assert [key for key, _ in rows] == [f"k{number}" for number in range(count)]
    for value, (_, row) in zip(texts(count), rows, strict=True):
        if isinstance(value, str) and value:
            assert np.array_equal(np.array(row.strip("[]").split(","), np.float32), row_of_ids(ids_of(value)))
        else:
            assert row is None


def test_every_row_is_in_the_table_once(folder: Path, url: str, query: Query, backfill: Backfill) -> None:
    assert backfill(folder, **into(url, max_errors=len(BAD))) == 0
    check(query)
    assert [line["id"] for line in errors(folder)] == ["k3", "k40", "k77"]
    before = query("SELECT xmin FROM embeddings")
    (folder / "part-00001.parquet").unlink()  # as after a kill between the database and the folder
    assert backfill(folder, **into(url, max_errors=len(BAD), resume=True)) == 0
    check(query)
    assert sorted(before) != sorted(query("SELECT xmin FROM embeddings"))


def test_types_are_those_of_the_options(tmp_path: Path, url: str, query: Query, fake_server: Server) -> None:
    source = tmp_path / "in.csv"
    source.write_text("key,text\na,one\nb,two\n")
    query("CREATE SCHEMA s")
    for table, dtype, id_column in (("s.halves", "float16", None), ("Whole", "float32", "key")):
        job = options(source, tmp_path / table, **into(url, table=table, dtype=dtype, id_column=id_column))
        assert run(job, url_of(fake_server)) in (0, 1)
    statement = (
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 0 AND attrelid = '{}'::regclass"
    )
    assert query(statement.format("s.halves")) == [("bigint",), (f"halfvec({DIMENSIONS})",)]
    assert query(statement.format('"Whole"')) == [("text",), (f"vector({DIMENSIONS})",)]
    assert query("SELECT id FROM s.halves ORDER BY id") == [(0,), (1,)]


def test_workers_share_a_table_and_other_columns_are_left(
    folder: Path, url: str, query: Query, backfill: Backfill
) -> None:
    query(
        f"CREATE EXTENSION vector; CREATE TABLE embeddings (id text UNIQUE, embedding vector({DIMENSIONS}), note text)"
    )
    query("INSERT INTO embeddings VALUES ('k3', NULL, 'mine'), ('k5', NULL, 'mine')")
    for number in (1, 0):
        backfill(folder, **into(url, worker=(number, 2), resume=True))
    check(query)
    assert query("SELECT id FROM embeddings WHERE note = 'mine' ORDER BY id") == [("k3",), ("k5",)]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("id text PRIMARY KEY, embedding vector(7)", r"has vector\(7\) as embedding, and this job has vector"),
        ("id text PRIMARY KEY, embedding halfvec(16)", rf"has halfvec\({DIMENSIONS}\) as embedding"),
        ("id bigint PRIMARY KEY, embedding vector(16)", "has bigint as id, and this job has text"),
        ("id text PRIMARY KEY", "has no such column as embedding"),
        ("id text, embedding vector(16)", "no unique or exclusion constraint"),
    ],
)
def test_a_table_of_another_shape_is_refused(
    columns: str, words: str, folder: Path, url: str, query: Query, backfill: Backfill
) -> None:
    query(f"CREATE EXTENSION vector; CREATE TABLE embeddings ({columns.replace('16', str(DIMENSIONS))})")
    with pytest.raises(RefusedJob, match=words):
        backfill(folder, **into(url))
    assert query("SELECT count(*) FROM embeddings") == [(0,)]


def test_what_a_user_may_not_do_is_said_at_the_start(folder: Path, url: str, query: Query, backfill: Backfill) -> None:
    query("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN")
    as_reader = url.replace("user=tests", "user=reader")
    with pytest.raises(RefusedJob, match=r"no pgvector, and it can't be made \(CREATE EXTENSION\): permission denied"):
        backfill(folder, **into(as_reader))
    query(f"CREATE EXTENSION vector; CREATE TABLE embeddings (id text PRIMARY KEY, embedding vector({DIMENSIONS}))")
    with pytest.raises(RefusedJob, match="permission denied for table embeddings"):
        backfill(folder, **into(as_reader, resume=True))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:se-cret@127.0.0.1:1/db",
        "postgresql://me:se-cret%zz@127.0.0.1:1/db",
        "postgresql://me:se-cret@127.0.0.1:1/db?nonsense=1",
    ],
)
def test_no_message_and_no_file_has_the_password(url: str, source: Path, folder: Path) -> None:
    with pytest.raises(RefusedJob) as caught:
        Job(options(source, folder, **into(url)))
    assert "se-cret" not in str(caught.value)
    assert str(caught.value).startswith("OUT ")


def test_the_manifest_names_the_place_without_the_user(folder: Path, url: str, backfill: Backfill) -> None:
    with_password = url + "&password=se-cret"
    backfill(folder, **into(with_password))
    content = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"table embeddings" in content
    assert b"se-cret" not in content
    assert b"tests@" not in content
    with pytest.raises(RefusedJob, match=r"sink was .* table embeddings, and is .* table others$"):
        backfill(folder, **into(with_password, table="others", resume=True))


def test_a_table_that_is_gone_or_lost_rows_is_told(folder: Path, url: str, query: Query, backfill: Backfill) -> None:
    backfill(folder, **into(url))
    query("DELETE FROM embeddings WHERE id > 'k5'")
    with pytest.raises(BackfillError, match="something removed them"):
        backfill(folder, **into(url, resume=True))
    query("DROP TABLE embeddings")
    with pytest.raises(RefusedJob, match="there is no table embeddings, but parts of this job are in it"):
        backfill(folder, **into(url, resume=True))


def test_what_the_table_refuses_stops_the_job_and_nothing_of_the_shard_is_there(
    folder: Path, url: str, query: Query, backfill: Backfill
) -> None:
    columns = f"id text PRIMARY KEY CHECK (id <> 'k60'), embedding vector({DIMENSIONS})"
    query(f"CREATE EXTENSION vector; CREATE TABLE embeddings ({columns})")
    with pytest.raises(BackfillError, match=r"the table embeddings refuses: new row .* violates check constraint"):
        backfill(folder, **into(url))
    assert query("SELECT count(*) FROM embeddings WHERE id ~ '^k[5-9].$'") == [(0,)]


def test_a_database_that_is_away_is_asked_again(
    folder: Path, url: str, query: Query, backfill: Backfill, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, killed = PgvectorSink.put, []

    def put_after_a_kill(sink: PgvectorSink, content: Any) -> None:
        if content.shard in (1, 3) and content.shard not in killed:
            killed.append(content.shard)
            query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'embedline backfill'"
            )
        put(sink, content)

    monkeypatch.setattr(PgvectorSink, "put", put_after_a_kill)
    monkeypatch.setattr(sinks, "_WAITS", (0,))
    assert backfill(folder, **into(url)) == 1
    assert sorted(killed) == [1, 3]  # either may be done first
    check(query)
    monkeypatch.setattr(sinks, "_WAITS", ())
    (folder / "part-00001.parquet").unlink()
    killed.clear()
    with pytest.raises(BackfillError, match="the database can't be written to"):
        backfill(folder, **into(url, resume=True))


@pytest.mark.full
@pytest.mark.holds("Each row of a backfill is written exactly once")
def test_a_job_that_is_killed_and_resumed_leaves_every_row_once(
    tmp_path: Path, folder: Path, url: str, query: Query
) -> None:
    count, chance = 3000, random.Random(18)
    source = write_jsonl(tmp_path / "in.jsonl", texts(count))
    engine = ("--engine", "fake", "--fake-dim", str(DIMENSIONS), "--fake-tokens-per-second", "10000")
    form = ("--id-column", "key", "--output-dtype", "float32", "--shard-rows", "50", "--max-errors", "3")
    job = (source, url, "--job-folder", folder, *form, *engine, "--resume")
    query(f"CREATE EXTENSION vector; CREATE TABLE embeddings (id text PRIMARY KEY, embedding vector({DIMENSIONS}))")

    def num_rows() -> int:
        return int(query("SELECT count(*) FROM embeddings")[0][0])

    for _ in range(5):
        enough = num_rows() + chance.randint(1, 400)
        kill_amid(command(*job), lambda enough=enough: num_rows() >= enough)  # type: ignore[misc]
    assert 5 * 50 <= num_rows() < count
    code, last, said = end(command(*job))
    assert (code, last["rows"], last["failed"]) == (0, count, 3), said
    check(query, count=count)


def test_a_signal_ends_the_waiting(monkeypatch: pytest.MonkeyPatch, source: Path, folder: Path, url: str) -> None:
    from server.features.backfill.errors import SinkAway, Stopped

    class Away:
        def put(self, content: Any) -> None:
            token.cancel()
            raise SinkAway("away")

    token = CancellationToken()
    with pytest.raises(Stopped):
        sinks.persistent(Away(), token)(None)  # type: ignore[arg-type]
