"""Inputs: every kind gives the same rows from any row on, a wrong row is bad alone, a wrong file is refused."""

import csv
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from server.features.backfill.errors import InputChanged, RefusedJob
from server.features.backfill.readers import BadText
from server.features.backfill.source import Source

TEXTS = [f"text {number}" for number in range(600)]
IDS = [f"k{number}" for number in range(600)]
TABLE = pa.table({"other": np.arange(600), "text": TEXTS, "key": IDS})


def write_stream(table: Any, path: Path) -> None:
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=100)


def write_jsonl(table: Any, path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
    codec = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    with pa.output_stream(path, compression=codec) as stream:
        stream.write(lines.encode())


def write_csv(table: Any, path: Path) -> None:
    text = path.with_name("plain")
    with text.open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(table.column_names)
        lines.writerows(row.values() for row in table.to_pylist())
    path.write_bytes(gzip.compress(text.read_bytes()) if path.suffix == ".gz" else text.read_bytes())
    text.unlink()


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "a.parquet": lambda table, path: pq.write_table(table, path, row_group_size=100),
    "a.feather": lambda table, path: pa.feather.write_feather(table, path, chunksize=100),
    "a.arrow": write_stream,
    "a.jsonl": write_jsonl,
    "a.jsonl.gz": write_jsonl,
    "a.ndjson.zst": write_jsonl,
    "a.csv": write_csv,
    "a.csv.gz": write_csv,
}


def planned(path: Path | str, *, id_column: str | None = "key") -> Source:
    source = Source(str(path), column="text", id_column=id_column)
    source.plan()
    return source


def read(source: Source, start: int = 0) -> tuple[list[Any], list[Any]]:
    found = list(source.read(start))
    return [key for rows in found for key in rows.ids], [text for rows in found for text in rows.texts]


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_is_read_from_any_row_on(name: str, tmp_path: Path) -> None:
    WRITERS[name](TABLE, tmp_path / name)
    source = planned(tmp_path / name)
    assert source.num_rows == 600
    for start in (0, 99, 100, 350, 599):
        assert read(source, start) == (IDS[start:], TEXTS[start:])


def test_a_folder_is_read_in_the_order_of_names_and_rows_are_numbered_through_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name, start in (("sub/b.parquet", 200), ("a.parquet", 0), ("sub/c.parquet", 400)):
        pq.write_table(TABLE.slice(start, 200), tmp_path / name)
    (tmp_path / "README.md").write_text("of the data set")
    (tmp_path / "_temporary.parquet").write_text("no data")
    source = planned(tmp_path, id_column=None)
    assert read(source, 150) == (list(range(150, 600)), TEXTS[150:])


def test_a_file_system_of_fsspec_is_read() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/set/a.jsonl", b'{"text": "x", "key": 7}\n')
    try:
        assert read(planned("memory://set")) == ([7], ["x"])
    finally:
        memory.rm("/set", recursive=True)


@pytest.mark.parametrize("method", ["info", "find", "open"])
def test_whatever_a_stores_library_raises_is_one_line(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/away/a.jsonl", b'{"text": "x", "key": 7}\n')

    def away(*_: Any, **__: Any) -> None:
        raise RuntimeError("the library's own:\nno route")

    with monkeypatch.context() as patched:
        patched.setattr(type(memory), method, away)
        with pytest.raises(RefusedJob, match=r"^(IN|/away/a\.jsonl) can't be read: the library's own: no route$"):
            planned("memory://away")
    memory.rm("/away", recursive=True)


def test_a_link_to_a_folder_is_followed_and_one_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.jsonl").write_text('{"key": 1, "text": "a"}\n')
    (tmp_path / "in" / "link").symlink_to(tmp_path / "elsewhere")
    assert read(planned(tmp_path / "in")) == ([1], ["a"])
    for name in ("one", "two"):  # they would be a million folders
        (tmp_path / "elsewhere" / name).symlink_to(tmp_path / "in")
    with pytest.raises(
        RefusedJob, match=r"IN has .*in once more, by a link, as .*in/link/(one|two): each row would be"
    ):
        planned(tmp_path / "in")


def test_a_link_to_nothing_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"key": 1, "text": "a"}\n')
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "c.jsonl")
    with pytest.raises(RefusedJob, match=r"b\.jsonl can't be read: it is gone$"):
        planned(tmp_path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_file_of_another_encoding_is_refused(name: str, encoding: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"key": 1, "text": "a"}\n' if name == "a.jsonl" else "key,text\n1,a\n", encoding)
    with pytest.raises(RefusedJob, match=rf"{name} is no UTF-8 but UTF-16 or UTF-32, by its first bytes$"):
        planned(tmp_path)


def test_a_column_that_no_line_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"key": 1, "words": "a"}\n' * 300)
    with pytest.raises(RefusedJob, match=r'^no line of IN has "text", as --column says$'):
        planned(path)
    path.write_text('{"id": 1, "text": "a"}\n' * 300)
    with pytest.raises(RefusedJob, match=r'^no line of IN has an id in "key", as --id-column says$'):
        planned(path)
    path.write_text('{"id": 1, "words": "a"}\n' * 300 + '{"key": 2, "text": "a"}\n')
    assert planned(path).num_rows == 301
    path.write_text("broken\n")
    assert planned(path).num_rows == 1


def test_wrong_lines_of_jsonl_are_bad_rows_alone(tmp_path: Path) -> None:
    lines = [b'{"key": 1, "text": "good"}', b"{broken", b"", b"[1]", b'{"key": 2}', b'{"key": 3, "text": 4}']
    lines += [b'{"key": 4, "text": ""}', b'{"key": 5, "text": null}', b'{"key": 6, "text": "\xff"}', b'{"text": "end"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    ids, texts = read(planned(tmp_path / "a.jsonl"))
    assert ids == [1, None, None, 2, 3, 4, 5, None, None]
    assert [text for text in texts if not isinstance(text, BadText)] == ["good", "end"]
    assert [text.reason for text in texts if isinstance(text, BadText)] == [
        "the line is no JSON",
        "the line is no JSON object",
        'the line has no "text"',
        "the text is no text but int",
        "the text is empty",
        "the text is null",
        "the line is no JSON",
    ]


def test_a_line_with_what_json_lacks_keeps_its_row_and_its_id(tmp_path: Path) -> None:
    lines = ['{"key": 1.0, "text": "a", "score": NaN}', '{"key": 2, "text": "\\ud83d"}', '{"key": 3, "text": NaN}']
    lines += ['{"key": "\\ud83d", "text": "b"}', f'{{"key": 5, "text": "c", "deep": {"[" * 100_000}}}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    ids, texts = read(planned(tmp_path / "a.jsonl"))
    assert ids == [1, 2, 3, None, None]
    assert [text if isinstance(text, str) else text.reason for text in texts] == [
        "a",
        "the text is not UTF-8",
        "the text is no text but float",
        "the id is not UTF-8",
        "the line is no JSON",
    ]


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(["a", "b"], pa.string_view()),
        pa.array(["a", "b"], pa.large_string()),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array([7, 8]).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays([1, 2], ["a", "b"]),
    ],
    ids=lambda keys: str(keys.type),
)
def test_ids_however_they_are_encoded(keys: Any, tmp_path: Path) -> None:
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file,
        pa.ipc.new_stream(file, pa.schema({"key": keys.type, "text": pa.string_view()})) as out,
    ):
        out.write_batch(pa.record_batch({"key": keys, "text": pa.array(["x", "y"], pa.string_view())}))
    source = planned(tmp_path / "a.arrow")
    assert read(source) == (keys.to_pylist(), ["x", "y"])
    assert len(pa.array(keys.to_pylist(), pa.type_for_alias(source.id_type))) == 2  # as parts are written


def test_zeros_behind_a_gzip_are_no_rows(tmp_path: Path) -> None:
    write_jsonl(TABLE, tmp_path / "a.jsonl.gz")
    expected = read(planned(tmp_path / "a.jsonl.gz"))
    with (tmp_path / "a.jsonl.gz").open("ab") as file:
        file.write(bytes(70_000))
    assert read(planned(tmp_path / "a.jsonl.gz")) == expected


@pytest.mark.parametrize("name", ["", "a.jsonl"])
def test_a_pipe_is_refused(name: str, tmp_path: Path) -> None:
    """Opening one waits for whoever writes to it."""
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "a.jsonl")
    with pytest.raises(RefusedJob, match="a pipe can't be read twice"):
        planned(tmp_path / "in" / name)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", '{"key": "1", "text": "good"}\n'), ("b.csv", "key,text\n1,good\n")):
        (tmp_path / name).write_text(content, "utf-8-sig")
        assert read(planned(tmp_path / name)) == (["1"], ["good"])


def test_wrong_lines_of_csv_are_bad_rows_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'key,text\r\n1,"a\nb, c"\r\n\r\n2\r\n3,x,y\r\n4,\xff\r\n5,end')
    ids, texts = read(planned(tmp_path / "a.csv"))
    assert ids == ["1", "2", "3", "4", "5"]
    assert (texts[0], texts[4]) == ("a\nb, c", "end")
    assert [text.reason for text in texts[1:4]] == [
        "the line has 1 fields where the header has 2",
        "the line has 3 fields where the header has 2",
        "the text is not UTF-8",
    ]


def test_a_null_and_bytes_that_are_no_text_are_bad_rows_of_parquet(tmp_path: Path) -> None:
    offsets, data = pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")
    wrong = pa.StringArray.from_buffers(2, offsets, data)
    table = pa.table({"text": pa.chunked_array([wrong, pa.array([None, "b"])]), "key": [1, 2, 3, 4]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(planned(tmp_path / "a.parquet")) == (
        [1, 2, 3, 4],
        ["a", BadText("the text is not UTF-8"), BadText("the text is null"), "b"],
    )


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "IN has no such file"),
        ({"a.txt": "x"}, "IN has no such file"),
        ({"a.csv": "key,text\n", "b.jsonl": "{}"}, "IN has files of several kinds: csv, jsonl"),
        ({"a.csv": "key,words\n1,a\n"}, "has no column text, or several: it has key, words"),
        ({"a.csv": 'key,text\n1,"a\n'}, "can't be read from line 2 on"),
        ({"a.parquet": "PAR1 and nothing else"}, "a.parquet"),
        ({"a.arrow": "nothing"}, "a.arrow"),
    ],
)
def test_a_wrong_input_is_refused(files: dict[str, str], words: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(RefusedJob, match=words):
        planned(tmp_path)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"text": [1], "key": ["a"]}, "has no texts in the column text but int64"),
        ({"words": ["a"], "key": ["a"]}, "has no column text"),
        ({"text": ["a"], "key": [1]}, "has ids of int64 where"),
        ({"text": ["a"], "key": [1.5]}, "has ids of the type double"),
    ],
)
def test_a_schema_that_changes_half_way_is_refused(second: dict[str, Any], words: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "key": ["a"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table(second), tmp_path / "b.parquet")
    with pytest.raises(RefusedJob, match=words):
        planned(tmp_path)


def test_an_input_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedJob, match=r"^IN can't be read: there is nothing$"):
        planned(tmp_path / "a.csv")


def test_a_compressed_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    write_jsonl(TABLE, tmp_path / "a.jsonl.gz")
    (tmp_path / "a.jsonl.gz").write_bytes((tmp_path / "a.jsonl.gz").read_bytes()[:-100])
    with pytest.raises(RefusedJob, match=r"a\.jsonl\.gz can't be read: Compressed file ended before"):
        planned(tmp_path)


def test_a_file_that_changed_since_the_plan_is_not_read(tmp_path: Path) -> None:
    write_jsonl(TABLE, tmp_path / "a.jsonl")
    source = planned(tmp_path)
    with (tmp_path / "a.jsonl").open("a") as stream:
        stream.write('{"key": "new", "text": "new"}\n')
    for look in (lambda: read(source), lambda: source.check(range(5))):
        with pytest.raises(InputChanged, match="has changed since the job was planned") as caught:
            look()
        assert not caught.value.resumes
    source.check(range(600, 601))  # rows of no file


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize("name", ["b.parquet", "b.jsonl", "b.csv.gz"])
def test_placeholders_are_named(tmp_path: Path, name: str) -> None:
    """As IN and among its files: rows of a file that DVC has not fetched would be lost."""
    whole = tmp_path / name.replace("b.", "a.", 1)
    WRITERS[whole.name](TABLE.slice(0, 3), whole)
    note = tmp_path / f"{name}.dvc"
    for make, words in (
        (lambda: (tmp_path / name).write_text(LFS), f"{name} is a pointer of Git LFS; git lfs pull fetches the file$"),
        (lambda: (tmp_path / name).symlink_to(".git/annex/objects/0"), f"{name} is a placeholder of git-annex; "),
        (lambda: note.write_text(""), f"{name} is not here, and {note.name} stands in for it; dvc pull fetches it$"),
    ):
        make()
        for location in (tmp_path, tmp_path / name):
            with pytest.raises(RefusedJob, match=words):
                Source(str(location), column="text", id_column=None)
        (tmp_path / name).unlink(missing_ok=True)
    note.rename(tmp_path / f"{whole.name}.dvc")  # of a file that is here
    (tmp_path / "README.md").write_text(LFS)  # no data
    Source(str(tmp_path), column="text", id_column=None).plan()
    (tmp_path / "more.dvc").write_text("")  # of a folder
    with pytest.raises(RefusedJob, match=r"more is not here, and more\.dvc stands in for it"):
        Source(str(tmp_path), column="text", id_column=None)
