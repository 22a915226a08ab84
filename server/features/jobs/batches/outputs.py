"""The two files that a batch writes, as JSONL or Parquet: what lies behind their committed lengths is overwritten, and
cut off then.

Where servers share batches, each claim of a batch writes files of its own, which begin with a copy of what is
committed. So what a server still writes that has lost its claim is in no file that counts.

A Parquet file has the columns custom_id, index of the text in its line, prompt_tokens of the line, embedding. While the
batch runs, its rows are kept line by line in a file that can be written on after a crash, as Parquet can't.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from server.features.jobs.batches.lines import LineProblem
from server.features.jobs.batches.state import BatchState, KeptBatch
from server.features.jobs.files import Files
from server.features.jobs.http_client import HttpAnswer
from wire.files import sync_folder

if TYPE_CHECKING:
    import numpy as np

RAW = "application/octet-stream"  # what lines are asked for
FORMATS: dict[str, "np.dtype[Any]"] = {"parquet_f16": np.dtype("<f2"), "parquet_f32": np.dtype("<f4")}
_ROWS_A_GROUP = 8192
_MOST_BYTES = 64 << 20  # of rows in memory


def write(path: Path, content: bytes | bytearray, at: int) -> None:
    """Writes bytes, which are on the disk when it returns. The same call again, after an error, mends what that one
    left. Blocking.

    Raises OSError, also where bytes before these are gone: they would become zeros.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT if at == 0 else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        rest = memoryview(content)
        while rest:
            written = os.pwrite(descriptor, rest, at)
            rest, at = rest[written:], at + written
        os.ftruncate(descriptor, at)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy(earlier: Path, path: Path, size: int) -> None:
    """Copies the first `size` bytes, which are on the disk when it returns. Blocking. Raises OSError."""
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with earlier.open("rb") as source:
            at = 0
            while at < size and (count := os.sendfile(descriptor, source.fileno(), at, size - at)):
                at += count
        if at < size:
            raise FileNotFoundError(f"{earlier} has lost its end")
        os.fsync(descriptor)
    except OSError:
        path.unlink(missing_ok=True)  # a part of it would keep a full disk full
        raise
    finally:
        os.close(descriptor)


class Outputs:
    """The output files of one claim. `state` says how long they are and what they will be called."""

    def __init__(self, files: Files, kept: KeptBatch, dtype: "np.dtype[Any] | None") -> None:
        """dtype  of the Parquet file that the output becomes; None = JSONL"""
        self._files = files
        self._kept = kept
        self._dtype = dtype
        self._pair = self._of(kept.state.claim)

    async def begin(self) -> bool:
        """Whether all that is committed is there, copied from an earlier claim's files if need be. Raises OSError."""
        state = self._kept.state
        if state.outputs_claim == state.claim:
            return True
        earlier = self._of(state.outputs_claim)
        copies = zip(earlier, self._pair, _sizes(state), _ids(state), strict=True)
        are_there = [await self._copied(*one) for one in copies]
        if not all(are_there):
            await asyncio.to_thread(self._sync_folder)  # it fails where all of the folder is away, which may come back
            return False
        await asyncio.to_thread(self._sync_folder)
        await self._kept.change(lambda state: msgspec.structs.replace(state, outputs_claim=state.claim))
        _remove(earlier)
        return True

    def write(self, output: bytearray, error: bytearray, sizes: tuple[int, int]) -> None:
        """Writes behind so many bytes of each. On the disk when it returns. Blocking. Raises OSError."""
        for one, content, size in zip(self._pair, (output, error), sizes, strict=True):
            if content:
                write(one, content, size)
        if not all(sizes):  # one of them may be new
            self._sync_folder()

    async def close(self) -> None:
        """Cut to what is committed, they become files. Can be done again. Raises OSError and what the store raises."""
        state = self._kept.state
        for one, size, file_id, name in zip(self._pair, _sizes(state), _ids(state), ("output", "error"), strict=True):
            dtype = self._dtype if name == "output" else None
            path = self._files.path(file_id)
            if size and await self._files.info(self._kept.owner, file_id) is None:
                if one.exists() or dtype is not None or not path.exists():  # else it has its name already
                    await asyncio.to_thread(_close, one, size, path, dtype)
                ending = "parquet" if dtype is not None else "jsonl"
                await self._files.keep(self._kept.owner, file_id, f"{state.id}_{name}.{ending}")
            self._files.remove_copy(file_id)
            if not size or one != path:
                one.unlink(missing_ok=True)

    def remove_rest(self) -> None:
        """Remove what all claims have left, beside the files that clients see. Blocking."""
        for file_id in _ids(self._kept.state):
            for left in self._files.path("").glob(f"{file_id}.*"):
                left.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the files of a batch that has failed. Blocking."""
        _remove(self._pair)
        self.remove_rest()

    async def forget(self) -> None:
        """Remove the files of a lost claim whose batch has ended meanwhile: nobody knows what came too late."""
        await asyncio.to_thread(self.remove_rest)  # a half Parquet file too
        for file_id in _ids(self._kept.state):
            if await self._files.exists(file_id):
                continue
            if (hidden := await self._files.hide(self._kept.owner, file_id)) is not None:
                await self._files.remove(hidden)  # its owner had deleted it when this claim named it

    def _of(self, claim: str) -> tuple[Path, Path]:
        end = f".{claim}" if claim else ""
        output, error = _ids(self._kept.state)
        rows = ".rows" if self._dtype is not None else ""
        return self._files.path(output + rows + end), self._files.path(error + end)

    async def _copied(self, earlier: Path, output: Path, size: int, file_id: str) -> bool:
        """Whether the output has its committed bytes, or is a file already. Raises OSError."""
        if not size or await self._files.info(self._kept.owner, file_id) is not None:
            return True
        try:
            await asyncio.to_thread(copy, earlier, output, size)
        except FileNotFoundError:
            if self._files.path(file_id).exists() and self._kept.state.status in ("finalizing", "cancelling"):
                return True
            return await self._files.info(self._kept.owner, file_id) is not None
        return True

    def _sync_folder(self) -> None:
        sync_folder(self._files.path("").absolute())


def _sizes(state: BatchState) -> tuple[int, int]:
    return state.output_bytes, state.error_bytes


def _ids(state: BatchState) -> tuple[str, str]:
    return state.output_file_id, state.error_file_id


def _close(output: Path, size: int, path: Path, dtype: "np.dtype[Any] | None") -> None:
    write(output, b"", size)
    if output == path:
        return
    whole = output
    if dtype is not None:
        whole = output.with_name(f"{output.name}.parquet")
        write_parquet(output, whole, dtype)
    whole.replace(path)
    sync_folder(path.parent)


def _remove(these: tuple[Path, Path]) -> None:
    for output in these:
        output.unlink(missing_ok=True)


class LineRows(msgspec.Struct, frozen=True):
    """The rows that a line's request was answered with; rows is float32 [n, dimensions], little-endian."""

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


def write_parquet(lines: Path, to: Path, dtype: "np.dtype[Any]") -> None:
    """Write all rows in their order; they are on the disk when it returns. Blocking. Raises OSError."""
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
