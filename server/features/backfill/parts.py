"""Parts: the files of one shard of the output. A shard is done when its Parquet file says so.

part-00017.parquet holds the ids and, in this format, the rows; its footer names the job and what the shard counted.
part-00017.npy holds the rows in the other format, and part-00017.errors.jsonl says what was wrong with bad rows. Both
are written first, and where rows go to a database, they are put there before. The same shard gives the same ids, and
rows that are equal but for rounding, so writing one again does no harm.
"""

import io
import json
import shutil
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import IO, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from server.features.backfill.errors import WrongIds
from server.features.backfill.output import Files
from server.features.backfill.plan import Plan

_FACTS = b"embedline"  # the key of the footer's metadata
_ERRORS = "errors.jsonl"
_READERS = 8  # parts that are looked at together: a store takes its time to answer
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers in a shard's footer."""

    job: str
    shard: int
    num_rows: int
    num_failed: int
    array_sum: int | None = None  # CRC-32 of the rows in a .npy; the pages of Parquet have their own


@dataclass(frozen=True, slots=True)
class Content:
    """A shard that is computed."""

    shard: int
    ids: Sequence[Any]
    rows: NDArray[Any]  # [n, dimensions] in the plan's dtype; anything where a row failed
    failed: Mapping[int, str]  # places in the shard, and reasons


def write(files: Files, plan: Plan, content: Content, put: Callable[[Content], None] | None = None) -> None:
    """`put`: takes the rows where they go to a database. Raises WrongIds where an id has another type than those
    before, BackfillError where the disk refuses, and what `put` raises."""
    name, failed = _name(content.shard), sorted(content.failed)
    counts = Counts(plan.job, content.shard, len(content.ids), len(failed))
    columns = {"id": _ids(content, plan)}
    is_good = np.ones(len(content.ids), np.bool_)
    is_good[failed] = False
    if failed:
        first = plan.rows_of(content.shard).start
        with files.new_file(f"{name}.{_ERRORS}") as stream:
            for place in failed:
                line = {"row": first + place, "id": content.ids[place], "error": content.failed[place]}
                stream.write(json.dumps(line).encode() + b"\n")
    if put is not None:
        put(content)
    elif plan.format == "npy":
        content.rows[~is_good] = np.nan
        counts = replace(counts, array_sum=zlib.crc32(content.rows.data))
        with files.new_file(f"{name}.npy") as stream:
            np.save(stream, content.rows, allow_pickle=False)
    else:
        columns["embedding"] = vectors(content.rows, is_good)
    with files.new_file(f"{name}.parquet") as stream:
        write_table(columns, stream, metadata={_FACTS: json.dumps(asdict(counts))})


def _ids(content: Content, plan: Plan) -> pa.Array:
    """The ids as a column. Raises WrongIds. Types are looked at here, for Arrow would make 1 of 1.5."""
    kind, words = (str, "texts") if plan.id_type.endswith("string") else (int, "whole numbers")
    place = next((place for place, key in enumerate(content.ids) if type(key) not in (kind, type(None))), None)
    if place is not None:
        row, key = plan.rows_of(content.shard).start + place, content.ids[place]
        found = "number that is not exact" if isinstance(key, float) and key.is_integer() else type(key).__name__
        raise WrongIds(f"the id of row {row} is a {found}, and the ids of this job are {words}; the job can't go on")
    try:
        return pa.array(content.ids, pa.type_for_alias(plan.id_type))
    except (pa.ArrowException, ValueError, OverflowError):
        rows = plan.rows_of(content.shard)
        raise WrongIds(f"rows {rows.start} to {rows.stop - 1} have ids that no {plan.id_type} can hold") from None


def write_table(columns: Mapping[str, Any], stream: IO[bytes], *, metadata: Mapping[bytes, str] | None = None) -> None:
    """Write a table as parts are written."""
    pq.write_table(
        pa.table(dict(columns)).replace_schema_metadata(metadata),
        stream,
        compression="zstd",
        use_dictionary=False,
        write_page_checksum=True,
        use_byte_stream_split=["embedding.list.element"] if "embedding" in columns else False,
    )


def vectors(rows: NDArray[Any], is_good: NDArray[np.bool_]) -> Any:
    """A column of [n, dimensions], null where a row is not good; that one is overwritten."""
    rows[~is_good] = 0
    flat = pa.array(rows.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, rows.shape[1], mask=pa.array(~is_good))


def done(files: Files, plan: Plan, shards: Iterable[int], *, reads_rows: bool = False) -> dict[int, Counts]:
    """The shards whose files are there and are this job's. `reads_rows`: every byte of them is compared with its sums,
    else their sizes and facts are. Raises BackfillError where that can't be known now."""
    names, job = files.names(), plan.job
    there = [shard for shard in shards if f"{_name(shard)}.parquet" in names]
    with ThreadPoolExecutor(_READERS) as threads:
        found = threads.map(lambda shard: _counts(files, plan, shard, reads_rows=reads_rows), there)
    return {
        shard: counts
        for shard, counts in zip(there, found, strict=True)
        if counts is not None and (counts.job, counts.shard) == (job, shard)
    }


def _counts(files: Files, plan: Plan, shard: int, *, reads_rows: bool) -> Counts | None:
    """Returns None where the shard's files are not whole."""
    name = _name(shard)
    try:
        with files.read(f"{name}.parquet") as stream:
            part = pq.ParquetFile(stream, page_checksum_verification=True)
            metadata = part.metadata
            for _ in part.iter_batches() if reads_rows else ():
                pass
        counts = Counts(**json.loads((metadata.metadata or {})[_FACTS]))
        if plan.format == "npy":
            with files.read(f"{name}.npy") as stream:
                if not _is_array(stream, metadata.num_rows, plan.dimensions):
                    return None
                if reads_rows and counts.array_sum not in (None, _sum_of_array(stream)):
                    return None
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError):
        return None
    return counts if metadata.num_rows == counts.num_rows == len(plan.rows_of(shard)) else None


def _is_array(stream: BinaryIO, *shape: int) -> bool:
    """Whether it is a whole .npy of this shape. Raises ValueError for what is no .npy."""
    np.lib.format.read_magic(stream)
    found, _, dtype = np.lib.format.read_array_header_1_0(stream)
    size = stream.tell() + int(np.prod(shape)) * dtype.itemsize
    return found == shape and stream.seek(0, io.SEEK_END) == size


def _sum_of_array(stream: BinaryIO) -> int:
    """CRC-32 of what stands behind the header."""
    stream.seek(0)
    np.lib.format.read_magic(stream)
    np.lib.format.read_array_header_1_0(stream)
    found = 0
    while data := stream.read(_COPY_BYTES):
        found = zlib.crc32(data, found)
    return found


def gather_errors(files: Files, plan: Plan) -> None:
    """Writes all bad rows to one file, in order; there is always one when a job is done. Raises BackfillError."""
    names = files.names()
    with files.new_file(_ERRORS) as stream:
        for name in (f"{_name(shard)}.{_ERRORS}" for shard in range(plan.num_shards)):
            if name in names:
                with files.read(name) as part:
                    shutil.copyfileobj(part, stream, _COPY_BYTES)


def _name(shard: int) -> str:
    return f"part-{shard:05d}"
