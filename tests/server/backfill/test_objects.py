"""OUT on an object store, beyond what test_job.py holds for it and for a folder alike."""

from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from embedline.client.preference import CancellationToken
from server.features.backfill import parts
from server.features.backfill.errors import BackfillError, RefusedJob
from server.features.backfill.job import Job
from server.features.backfill.locations import lies_in
from server.features.backfill.output import files_at
from server.features.backfill.sinks import kind_of
from tests.server.backfill.jobs import Backfill, Place, check, options, texts, url_of, write_jsonl
from tests.server_e2e.running import Server

COUNT = 130
IDS = [f"k{number}" for number in range(COUNT)]


def test_a_file_is_put_once_and_whole_under_its_own_name(
    store: Place, backfill: Backfill, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts: list[str] = []
    put_file = MemoryFileSystem.put_file

    def noted(self: Any, own: str, path: str, **options: Any) -> None:
        puts.append(path.rpartition("/")[2])
        put_file(self, own, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "put_file", noted)
    backfill(store, format="npy")
    assert sorted(puts) == store.names()
    assert [name for name in puts if "00000" in name] == [
        "part-00000.errors.jsonl",
        "part-00000.npy",
        "part-00000.parquet",  # the last: it says that the part is done
    ]


def test_of_a_part_its_footer_alone_is_read(
    tmp_path: Path, store: Place, backfill: Backfill, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "in.jsonl", [f"text {number}" for number in range(2_000)])
    backfill(store, shard_rows=2_000)
    cat_file, num_bytes = MemoryFileSystem.cat_file, [0]

    def counted(self: Any, path: str, **of: Any) -> bytes:
        found: bytes = cat_file(self, path, **of)
        num_bytes.append(len(found) if path.endswith(".parquet") else 0)
        return found

    monkeypatch.setattr(MemoryFileSystem, "cat_file", counted)
    assert backfill(store, shard_rows=2_000, resume=True) == 0
    assert 0 < max(num_bytes) <= 65_536 < len(store.read("part-00000.parquet"))


@pytest.mark.parametrize("method", ["ls", "info", "cat_file", "put_file"])
def test_a_store_that_is_away_stops_the_job_in_one_line_and_what_is_done_is_kept(
    method: str, store: Place, backfill: Backfill, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, calls = getattr(MemoryFileSystem, method), []

    def away(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 3:
            raise RuntimeError("the library's own:\nno route")  # of a class that nobody knows
        return ask(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, method, away)
        with pytest.raises(
            BackfillError, match=r"memory://\S+ can't be (read|written): the library's own: no route$"
        ) as caught:
            backfill(store)
    assert not isinstance(caught.value, RefusedJob)
    before = {name: store.version(name) for name in store.names("part-*.parquet")}
    backfill(store, resume=True)
    check(store, texts(COUNT), IDS)
    assert {name: store.version(name) for name in before} == before


def test_a_full_temporary_folder_stops_the_job(
    source: Path, store: Place, backfill: Backfill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(source / "nothing"))
    with pytest.raises(BackfillError, match="the temporary folder can't be written: Not a directory"):
        backfill(store)
    assert store.names() == []


def test_a_manifest_is_made_once(source: Path, out: Place, fake_server: Server) -> None:
    same = [Job(options(source, out, resume=True, worker=(number, 2))) for number in range(2)]
    other = Job(options(source, out, resume=True, worker=(2, 3), dtype="float16"))
    for job in same:  # all of them saw no manifest
        job.run([url_of(fake_server)], None, CancellationToken())
    with pytest.raises(RefusedJob, match="OUT is of another job: dtype was float32, and is float16"):
        other.run([url_of(fake_server)], None, CancellationToken())
    check(out, texts(COUNT), IDS)


def test_a_job_whose_manifest_another_one_replaced_stops_before_its_next_part(
    out: Place, backfill: Backfill, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Place(f"{out}-other")
    backfill(other, shard_rows=60)
    write = parts.write

    def write_and_replace(*arguments: Any) -> None:
        write(*arguments)
        out.write("manifest.json", other.read("manifest.json"))

    monkeypatch.setattr(parts, "write", write_and_replace)
    with pytest.raises(BackfillError, match="another job has begun in OUT meanwhile"):
        backfill(out)
    assert out.names("part-*.parquet") == ["part-00000.parquet"]


def test_something_that_is_there_is_not_written_over_where_the_store_can_tell(store: Place) -> None:
    store.write("manifest.json", b"first")
    files = files_at(str(store))
    with pytest.raises(BackfillError, match="can't be written"), files.new_file("manifest.json", only_new=True) as new:
        new.write(b"second")
    assert store.read("manifest.json") == b"first"


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("s3://key:se-cret@bucket/out", "OUT must have no password in its URL"),
        ("filecache::s3://key:se-cret@bucket/out", "OUT must have no password in its URL"),
        ("az://c/out?sig=se-cret", "OUT must be one URL without a query"),
        ("filecache::memory://out", "OUT must be one URL without a query"),
        ("gs://bucket/out", "OUT can't be opened: Please install gcsfs"),
    ],
)
def test_what_is_no_place_for_files_is_refused_without_its_secrets(location: str, words: str) -> None:
    with pytest.raises(RefusedJob, match=words) as caught:
        files_at(location)
    assert "se-cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("out", "location", "inside"),
    [
        ("s3://b/in/out", "s3://b/in", True),
        ("s3a://b/in/", "s3://b/in", True),
        ("s3://b/index", "s3://b/in", False),
        ("s3://b/in/out", "gs://b/in", False),
        ("/b/in/out", "s3://b/in", False),
        ("file:///proc/self", "/proc", True),
    ],
)
def test_an_out_inside_of_in_is_known_by_its_url(out: str, location: str, inside: bool) -> None:
    assert lies_in(out, location) == inside


def test_an_in_that_can_not_even_be_looked_at_is_refused(folder: Path) -> None:
    with pytest.raises(RefusedJob, match=r"IN can't be read: .*File name too long"):
        Job(options("a" * 5000, folder))


def test_a_url_of_files_is_no_database() -> None:
    assert [kind_of(out) for out in ("s3://b/out", "hf://datasets/a/b", "file:///out", "out")] == [None] * 4
