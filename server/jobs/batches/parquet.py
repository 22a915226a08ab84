"""A batch's rows as one Parquet file: custom_id, index of the text in its line, prompt_tokens of the line, embedding.

While the batch runs, its rows are kept line by line in a file that can be written on after a crash, as Parquet can't.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from server.jobs.batches.lines import LineProblem
from server.jobs.http_client import HttpAnswer

RAW = "application/octet-stream"  # what lines are asked for
FORMATS: dict[str, "np.dtype[Any]"] = {"parquet_f16": np.dtype("<f2"), "parquet_f32": np.dtype("<f4")}
_ROWS_A_GROUP = 8192
_MOST_BYTES = 64 << 20  # of rows in memory


class LineRows(msgspec.Struct, frozen=True):
    """What a line's request was answered with; rows is float32 [n, dimensions], little-endian."""

    custom_id: str
    prompt_tokens: int
    dimensions: int
    rows: bytes

    @property
    def num_rows(self) -> int:
        return len(self.rows) // (4 * self.dimensions)


_LINES = msgspec.json.Decoder(LineRows)


def rows_of(custom_id: str, answer: HttpAnswer, dtype: "np.dtype[Any]") -> bytes:
    """The line that is kept until the batch ends. Raises LineProblem where the columns can't hold the answer."""
    headers = answer.headers
    shape, kind = headers.get("x-embedline-shape", ""), headers.get("x-embedline-dtype")
    if headers.get("content-type") != RAW or kind != "float32" or "x-embedline-endianness" in headers:
        raise LineProblem(
            "not_float32", "Parquet holds dense rows of float32: leave the fields that ask for others out"
        )
    if headers.get("x-embedline-failed-inputs", "0") != "0":  # on_error: "null", and NaN for their rows
        raise LineProblem("failed_inputs", "a text has failed, and Parquet has no place for the reason")
    found = LineRows(custom_id, int(headers["x-embedline-prompt-tokens"]), int(shape.rpartition(",")[2]), answer.body)
    if dtype.itemsize == 2 and np.abs(np.frombuffer(answer.body, "<f4")).max(initial=0) > np.finfo(dtype).max:
        raise LineProblem("not_float16", "a number of a row is larger than float16 can hold: parquet_f32 holds it")
    return msgspec.json.encode(found) + b"\n"


def write(lines: Path, to: Path, dtype: "np.dtype[Any]") -> None:
    """All rows in their order, on the disk when it returns. Blocking. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            pa.field("custom_id", pa.string(), nullable=False),
            pa.field("index", pa.int32(), nullable=False),
            pa.field("prompt_tokens", pa.int32(), nullable=False),
            pa.field("embedding", pa.list_(pa.from_numpy_dtype(dtype)), nullable=False),
        ]
    )
    descriptor = os.open(to, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        how = {"compression": "zstd", "use_dictionary": False, "use_byte_stream_split": ["embedding.list.element"]}
        with pq.ParquetWriter(stream, schema, **how) as writer:
            for group in _groups(lines):
                counts = [one.num_rows for one in group]
                ends = np.cumsum(np.repeat([one.dimensions for one in group], counts))
                numbers = np.concatenate([np.frombuffer(one.rows, "<f4") for one in group]).astype(dtype)
                columns = [
                    pa.array(np.repeat(np.array([one.custom_id for one in group], object), counts), pa.string()),
                    pa.array(np.concatenate([np.arange(count, dtype=np.int32) for count in counts])),
                    pa.array(np.repeat(np.array([one.prompt_tokens for one in group], np.int32), counts)),
                    pa.ListArray.from_arrays(pa.array([0, *ends], pa.int32()), pa.array(numbers)),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        stream.flush()
        os.fsync(stream.fileno())


def _groups(lines: Path) -> Iterator[list[LineRows]]:
    group: list[LineRows] = []
    num_rows = num_bytes = 0
    with lines.open("rb") as stream:
        for line in stream:
            one = _LINES.decode(line)
            group.append(one)
            num_rows += one.num_rows
            num_bytes += len(one.rows)
            if num_rows >= _ROWS_A_GROUP or num_bytes >= _MOST_BYTES:
                yield group
                group, num_rows, num_bytes = [], 0, 0
    if group:
        yield group
