"""Jobs on the fake engine: every row comes out once and exact, and what must not go on is refused by its name."""

import dataclasses
import errno
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedline.client.preference import CancellationToken
from server.features.backfill.errors import BackfillError, RefusedJob, Stopped, WrongIds
from server.features.backfill.job import Job, print_status
from server.features.backfill.output import files_at, read_manifest
from tests.server.backfill.jobs import (
    BAD,
    Backfill,
    Place,
    check,
    errors,
    options,
    run,
    texts,
    url_of,
    write_jsonl,
    written,
)
from tests.server_e2e.expected import DIMENSIONS
from tests.server_e2e.running import Server

COUNT = 330
IDS = [f"k{number}" for number in range(COUNT)]


@pytest.mark.holds("Each row of a backfill is written exactly once")
def test_every_row_has_its_vector_or_its_reason(out: Place, backfill: Backfill) -> None:
    assert backfill(out) == 1
    check(out, texts(COUNT), IDS)
    assert errors(out) == [
        {"row": 3, "id": "k3", "error": "the text is empty"},
        {"row": 40, "id": "k40", "error": "the text is null"},
        {"row": 77, "id": "k77", "error": "the text is no text but int"},
    ]
    assert backfill(out, resume=True, max_errors=len(BAD)) == 0


def test_a_text_that_is_too_long_is_bad_only_without_truncation(
    tmp_path: Path, fake_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", ["short", "long " * 600, "short too"])
    assert run(options(source, tmp_path / "cut"), url_of(fake_server)) == 0
    assert '"truncated": 1' in capsys.readouterr().out
    assert run(options(source, tmp_path / "whole", ask={"truncate": False}), url_of(fake_server)) == 1
    assert [row is None for row in written(tmp_path / "whole")[1]] == [False, True, False]
    assert "256" in errors(tmp_path / "whole")[0]["error"]


def test_rows_are_float16_in_parts_of_arrows_own_types(folder: Path, backfill: Backfill) -> None:
    backfill(folder, dtype="float16", id_column=None)
    part = pq.read_table(folder / "part-00000.parquet")
    assert part.schema.types == [pa.int64(), pa.list_(pa.float16(), DIMENSIONS)]
    assert "BYTE_STREAM_SPLIT" in pq.read_metadata(folder / "part-00000.parquet").row_group(0).column(1).encodings
    assert part["id"].to_pylist() == list(range(50))


def test_numpys_format_has_the_ids_beside_it(out: Place, backfill: Backfill) -> None:
    backfill(out, format="npy")
    rows = np.concatenate([np.load(io.BytesIO(out.read(part))) for part in out.names("part-*.npy")])
    assert rows.shape == (COUNT, DIMENSIONS)
    assert rows.dtype == np.float32
    assert np.flatnonzero(np.isnan(rows[:, 0])).tolist() == list(BAD)
    parts = [pq.read_table(io.BytesIO(out.read(part))) for part in out.names("part-*.parquet")]
    assert [key for part in parts for key in part["id"].to_pylist()] == IDS
    whole = out.read("part-00001.npy")
    out.remove("part-00001.npy")
    out.write("part-00002.npy", out.read("part-00002.npy")[:-8])
    backfill(out, format="npy", resume=True)
    assert out.read("part-00001.npy") == whole
    assert np.load(io.BytesIO(out.read("part-00002.npy"))).tobytes() == rows[100:150].tobytes()


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_part_that_changed_on_the_disk_is_made_again(kind: str, folder: Path, backfill: Backfill) -> None:
    """By one bit of the rows."""
    backfill(folder, format=kind)
    name = f"part-00001.{kind}"
    whole = (folder / name).read_bytes()
    middle = len(whole) // 2
    (folder / name).write_bytes(whole[:middle] + bytes((whole[middle] ^ 1,)) + whole[middle + 1 :])
    backfill(folder, format=kind, resume=True)
    assert (folder / name).read_bytes() == whole


def test_numbers_that_float16_lacks_are_bad_rows(folder: Path, backfill: Backfill) -> None:
    backfill(folder, dtype="float16", shard_rows=COUNT)
    found = {line["row"]: line["error"] for line in errors(folder) if line["row"] not in BAD}
    exact = folder.with_name("exact")
    backfill(exact, shard_rows=COUNT)
    too_large = {at for at, row in enumerate(written(exact)[1]) if row is not None and np.abs(row).max() > 65504}
    assert set(found) == too_large
    assert set(found.values()) <= {"a number of its row is too large for float16: use --output-dtype float32"}


def test_workers_share_one_folder(out: Place, backfill: Backfill) -> None:
    for number in range(3):
        backfill(out, worker=(number, 3), resume=True)
        assert bool(out.names("errors.jsonl")) == (number == 2)
    check(out, texts(COUNT), IDS)


def test_two_servers_share_the_work(source: Path, out: Place, fake_server: Server) -> None:
    run(options(source, out), url_of(fake_server), url_of(fake_server).replace("127.0.0.1", "localhost"))
    check(out, texts(COUNT), IDS)


def test_an_empty_input_is_a_job_without_parts(tmp_path: Path, out: Place, fake_server: Server) -> None:
    (tmp_path / "in.csv").write_text("key,text\n")
    assert run(options(tmp_path / "in.csv", out), url_of(fake_server)) == 0
    assert errors(out) == []


def test_what_is_done_is_not_done_again_and_what_is_broken_is(out: Place, backfill: Backfill) -> None:
    backfill(out)
    before = {part: (out.version(part), out.read(part)) for part in out.names("part-*.parquet")}
    out.write("part-00002.parquet", before["part-00002.parquet"][1][:-9])
    out.remove("part-00004.parquet")
    out.write("part-00005.parquet", before["part-00000.parquet"][1])
    backfill(out, resume=True)
    after = {part: (out.version(part), out.read(part)) for part in out.names("part-*.parquet")}
    assert {name: content for name, (_, content) in after.items()} == {
        name: content for name, (_, content) in before.items()
    }
    kept = {name for name in before if before[name][0] == after[name][0]}
    assert {f"part-0000{number}.parquet" for number in (0, 1, 3, 6)} <= kept
    assert "part-00002.parquet" not in kept


def test_a_folder_with_a_job_is_refused_without_resume(out: Place, backfill: Backfill) -> None:
    backfill(out)
    with pytest.raises(RefusedJob, match="--resume goes on with it"):
        backfill(out)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"dtype": "float16"}, "dtype was float32, and is float16"),
        ({"format": "npy"}, "format was parquet, and is npy"),
        ({"id_column": None}, "another job"),
        ({"shard_rows": 60}, "shard_rows was 50, and is 60"),
        ({"ask": {"dimensions": 8}}, "another job"),
    ],
)
def test_the_folder_of_another_job_is_refused(
    changed: dict[str, Any], words: str, out: Place, backfill: Backfill
) -> None:
    backfill(out)
    with pytest.raises(RefusedJob, match=f"^OUT is of another job: .*{words}|^OUT is of {words}"):
        backfill(out, resume=True, **changed)


def test_a_changed_input_is_refused(source: Path, out: Place, backfill: Backfill) -> None:
    backfill(out)
    write_jsonl(source, ["other"])
    with pytest.raises(RefusedJob, match=r"an input has changed: .*in\.jsonl$"):
        backfill(out, resume=True)


def test_another_model_is_refused(out: Place, backfill: Backfill, tmp_path: Path) -> None:
    backfill(out)
    begun = read_manifest(files_at(str(out)))
    assert begun is not None
    model = {**begun.model, "compute": "bfloat16", "id": "0"}
    out.write("manifest.json", dataclasses.replace(begun, model=model).as_json().encode())
    with pytest.raises(RefusedJob, match=r"the model is another: its compute was bfloat16, and is float32$"):
        backfill(out, resume=True)


@pytest.mark.parametrize("content", ["{}", "no JSON", None])
def test_a_folder_with_something_else_is_refused(content: str | None, source: Path, out: Place) -> None:
    out.write("manifest.json" if content else "holiday.jpg", (content or "").encode())
    words = "the manifest of OUT can't be read" if content else "OUT has files and no manifest of a job"
    with pytest.raises(RefusedJob, match=words):
        Job(options(source, out, resume=True))


def test_a_folder_that_another_process_writes_is_refused(source: Path, folder: Path) -> None:
    first = Job(options(source, folder))
    with pytest.raises(RefusedJob, match="being written by another process"):
        Job(options(source, folder, resume=True))
    Job(options(source, folder, resume=True, worker=(1, 2))).close()
    first.close()
    Job(options(source, folder, resume=True)).close()
    assert os.listdir(folder) == []  # no lock is left


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_refuses_stops_the_job_and_leaves_it_resumable(
    code: int, folder: Path, backfill: Backfill, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 8:
            raise OSError(code, os.strerror(code))
        sync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(BackfillError, match=f"can't be written: {os.strerror(code)}"):
            backfill(folder)
    assert not list(folder.glob("*.tmp"))
    assert 0 < len(list(folder.glob("part-*.parquet"))) < 7
    backfill(folder, resume=True)
    check(folder, texts(COUNT), IDS)


def test_an_input_that_changes_meanwhile_stops_the_job(source: Path, out: Place, fake_server: Server) -> None:
    begun = Job(options(source, out))
    os.utime(source, ns=(1, 1))
    with pytest.raises(BackfillError, match="has changed since the job was planned"):
        begun.run([url_of(fake_server)], None, CancellationToken())
    assert out.names("part-*") == []


@pytest.mark.parametrize("other", ['"two"', "1.5", "true", "[1]", f"{10**30}"])
def test_ids_of_another_type_stop_the_job(other: str, tmp_path: Path, out: Place, fake_server: Server) -> None:
    lines = ['{"key": 1, "text": "a"}', '{"key": null, "text": "b"}', f'{{"key": {other}, "text": "c"}}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    with pytest.raises(WrongIds, match=r"the id of row 2 is a .*, and the ids of this job are whole numbers") as caught:
        run(options(tmp_path / "in.jsonl", out, shard_rows=2), url_of(fake_server))
    assert ("a number that is not exact" in str(caught.value)) == other.startswith("10")


def test_an_id_that_is_too_large_stops_the_job(tmp_path: Path, out: Place, fake_server: Server) -> None:
    (tmp_path / "in.jsonl").write_text(f'{{"key": {1 << 63}, "text": "a"}}\n')
    with pytest.raises(WrongIds, match="rows 0 to 0 have ids that no int64 can hold"):
        run(options(tmp_path / "in.jsonl", out), url_of(fake_server))


@pytest.mark.parametrize("inside", [".", "vectors", "a/b"])
def test_an_out_inside_of_in_is_refused(inside: str, source: Path) -> None:
    with pytest.raises(RefusedJob, match="OUT lies in IN"):
        Job(options(source.parent, source.parent / inside))
    assert os.listdir(source.parent) == [source.name]  # no folder was made


def test_a_signal_stops_the_job(source: Path, out: Place, fake_server: Server) -> None:
    token = CancellationToken()
    token.cancel()
    with pytest.raises(Stopped):
        run(options(source, out), url_of(fake_server), token=token)


def test_a_server_that_is_none_of_ours_is_refused(out: Place, backfill: Backfill) -> None:
    with pytest.raises(RefusedJob, match=r"--model must name one of: "):
        backfill(out, model="nobody")


def test_a_dry_run_writes_nothing(out: Place, backfill: Backfill, capsys: pytest.CaptureFixture[str]) -> None:
    assert backfill(out, dry_run=True) == 0
    assert '"event": "estimate"' in (printed := capsys.readouterr().out)
    assert '"job_rows": 330' in printed
    assert out.names() == []


def test_the_status_is_read_from_the_folder_alone(
    out: Place, backfill: Backfill, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RefusedJob, match=r"^OUT has no job$"):
        print_status(str(out))
    backfill(out)
    out.remove("part-00001.parquet")
    capsys.readouterr()
    print_status(str(out))
    printed = capsys.readouterr().out
    assert '"rows": 280, "of": 330, "failed": 2, "parts": 7, "parts_done": 6, "is_done": false' in printed
