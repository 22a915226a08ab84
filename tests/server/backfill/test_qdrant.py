"""Jobs into Qdrant, by its client's own local mode."""

import contextlib
import random
import subprocess
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from server.features.backfill import qdrant
from server.features.backfill.errors import BackfillError, RefusedJob, SinkAway
from server.features.backfill.parts import Content
from server.features.backfill.sinks import kind_of
from tests.server.backfill.jobs import BAD, Backfill, command, end, kill_amid, texts, write_jsonl
from tests.server_e2e.expected import DIMENSIONS, ids_of, row_of_ids

COUNT = 230


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> QdrantClient:
    """One that all sinks of a test reach."""
    client = QdrantClient(":memory:")
    monkeypatch.setattr(client, "close", lambda: None)
    monkeypatch.setattr(qdrant, "QdrantClient", lambda **_: client)
    return client


INTO: dict[str, Any] = {"sink": "qdrant+http://localhost/notes", "format": "qdrant"}


def test_every_good_row_is_a_point_once(folder: Path, database: QdrantClient, backfill: Backfill) -> None:
    size = models.VectorParams(size=DIMENSIONS, distance=models.Distance.DOT)  # cosines would change the numbers
    database.create_collection("notes", vectors_config=size)
    bad = str(uuid.uuid5(uuid.NAMESPACE_URL, "k3"))
    database.upsert("notes", models.Batch(ids=[bad], vectors=[[1.0] * DIMENSIONS], payloads=[{"id": "k3"}]))
    assert backfill(folder, **INTO, max_errors=3) == 0
    (folder / "part-00001.parquet").unlink()  # as after a kill between the database and the folder
    assert backfill(folder, **INTO, max_errors=3, resume=True) == 0
    check(database, COUNT)


def check(client: QdrantClient, count: int) -> None:
    """Every good row of the input is a point, once and exact; no bad one is there."""
    assert client.count("notes").count == count - len(BAD)
    points, _ = client.scroll("notes", limit=count, with_vectors=True)
    found = {point.payload["id"]: point for point in points if point.payload}
    for number, text in enumerate(texts(count)):
        if number in BAD:
            assert f"k{number}" not in found
            continue
        point = found[f"k{number}"]
        assert point.id == str(uuid.uuid5(uuid.NAMESPACE_URL, f"k{number}"))
        assert (np.array(point.vector, np.float32) == row_of_ids(ids_of(text))).all()


@pytest.mark.full
@pytest.mark.holds("Each row of a backfill is written exactly once")
def test_a_job_that_is_killed_and_resumed_leaves_every_point_once(tmp_path: Path) -> None:
    count, chance = 2000, random.Random(18)
    out, folder = tmp_path / "out", tmp_path / "qdrant"
    source = write_jsonl(tmp_path / "in.jsonl", texts(count))
    engine = ("--engine", "fake", "--fake-dim", str(DIMENSIONS), "--fake-tokens-per-second", "10000")
    form = ("--id-column", "key", "--output-dtype", "float32", "--shard-rows", "50", "--max-errors", "3")
    job = (source, "qdrant+http://localhost/notes", "--job-folder", out, *form, *engine, "--resume")
    size = models.VectorParams(size=DIMENSIONS, distance=models.Distance.DOT)
    with contextlib.closing(QdrantClient(path=str(folder))) as client:
        client.create_collection("notes", vectors_config=size)

    def started() -> "subprocess.Popen[str]":
        return command(
            *job, module="tests.server.backfill.qdrant_in_folder", environment={"QDRANT_FOLDER": str(folder)}
        )

    def num_parts() -> int:
        return len(list(out.glob("part-*.parquet")))

    for _ in range(5):
        enough = num_parts() + chance.randint(1, 5)
        kill_amid(started(), lambda enough=enough: num_parts() >= enough)  # type: ignore[misc]
    assert 5 <= num_parts() < count // 50
    code, last, said = end(started())
    assert (code, last["rows"], last["failed"]) == (0, count, 3), said
    with contextlib.closing(QdrantClient(path=str(folder))) as client:
        check(client, count)


def test_a_collection_is_made_and_one_of_another_shape_is_refused(
    tmp_path: Path, folder: Path, database: QdrantClient, backfill: Backfill
) -> None:
    backfill(folder, **INTO, dtype="float16")
    vectors = database.get_collection("notes").config.params.vectors
    assert isinstance(vectors, models.VectorParams)
    assert (vectors.size, vectors.datatype) == (DIMENSIONS, models.Datatype.FLOAT16)
    words = f"has vectors: {DIMENSIONS} of float16, and this job has {DIMENSIONS} of float32"
    with pytest.raises(RefusedJob, match=words):
        backfill(tmp_path / "other", **INTO)
    database.delete_collection("notes")
    with pytest.raises(RefusedJob, match="there is no collection notes, but parts of this job are in it"):
        backfill(folder, **INTO, dtype="float16", resume=True)


@pytest.mark.parametrize(
    "url", ["qdrant+http://h", "qdrant+https://h/", "qdrant+https://me:key@h/c", "qdrant+https://h/c?api-key=k"]
)
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(RefusedJob, match="OUT must be like qdrant"):
        qdrant.QdrantSink(url, None)


@pytest.mark.parametrize("out", ["qdrant://h/c", "mysql://h/d"])
def test_another_url_is_refused(out: str) -> None:
    with pytest.raises(
        RefusedJob, match="OUT must be a folder, a URL that fsspec knows, as s3://, or begin with one of postgresql"
    ):
        kind_of(out)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ResponseHandlingException(OSError("refused")), SinkAway),
        (UnexpectedResponse(503, "", b"", None), SinkAway),  # type: ignore[arg-type]
        (UnexpectedResponse(403, "", b"", None), BackfillError),  # type: ignore[arg-type]
    ],
)
def test_only_what_may_pass_is_tried_again(
    error: Exception, raised: type[Exception], database: QdrantClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    sink = qdrant.QdrantSink("qdrant+http://localhost/notes", None)
    monkeypatch.setattr(database, "upsert", fail)
    content = Content(0, ["a"], np.zeros((1, DIMENSIONS), np.float32), {})
    with pytest.raises(BackfillError) as caught:
        sink.put(content)
    assert type(caught.value) is raised
