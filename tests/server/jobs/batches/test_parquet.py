"""Batches whose rows become a Parquet file."""

import asyncio
import contextlib
import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from server.features.jobs.batches import outputs
from server.features.jobs.http_client import HttpAnswer
from server.features.jobs.pace import SendQueue
from server.requests.errors import InvalidRequest
from tests.server.jobs.batches.fake_batches import FakeServer, Place, ended, input_lines, joined, opened, ran

FAILED = "x-embedline-failed-inputs"


class RowsServer(FakeServer):
    """Answers two rows, of as many numbers as the line has before it, all the line's number."""

    dtype = "float32"
    failed = "0"

    async def ask(self, queue: SendQueue, route: str, body: bytes, request_id: str, **more: Any) -> HttpAnswer:
        assert more["headers"] == [("accept", outputs.RAW)]
        self.asked.append(request_id)
        number = int(request_id.rpartition("_")[2])
        rows = np.full((2, number), number if number != 5 else 70_000, "<f4")
        headers = {"content-type": outputs.RAW, "x-embedline-shape": f"2,{number}", "x-embedline-prompt-tokens": "7"}
        return HttpAnswer(200, {**headers, "x-embedline-dtype": self.dtype, FAILED: self.failed}, rows.tobytes())


async def table_of(place: Place, file_id: str) -> list[dict[str, Any]]:
    info = await place.files.info("", file_id)
    assert info is not None
    assert info.filename.endswith("_output.parquet")
    content = await place.files.read("", file_id, 0, info.bytes)
    assert content is not None
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist()
    return found


@pytest.mark.parametrize("output_format", ["parquet_f32", "parquet_f16"])
async def test_rows_in_the_order_of_lines(output_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_ROWS_A_GROUP", 4)
    async with opened(tmp_path, RowsServer()) as place:
        shown = await ended(place, await place.made(joined(input_lines(6)), output_format=output_format))
        table = await table_of(place, shown["output_file_id"])
        errors = await place.lines(shown["error_file_id"])
        assert len(list((tmp_path / "files").iterdir())) == 2 + len(errors)
    good = [number for number in range(1, 7) if output_format == "parquet_f32" or number != 5]
    assert table == [
        {
            "custom_id": f"c{number - 1}",
            "index": index,
            "prompt_tokens": 7,
            "embedding": [float(number if number != 5 else 70_000)] * number,
        }
        for number in good
        for index in (0, 1)
    ]
    assert [(one["custom_id"], one["error"]["code"]) for one in errors] == [("c4", "not_float16")] * (6 - len(good))


@pytest.mark.parametrize(
    ("attribute", "value", "code"),
    [("dtype", "int8", "not_float32"), ("failed", "1", "failed_inputs")],
    ids=["rows of another kind", "a text that failed by on_error, so that its row is NaN"],
)
async def test_a_line_without_rows_of_floats_is_an_error(attribute: str, value: str, code: str, tmp_path: Path) -> None:
    server = RowsServer()
    setattr(server, attribute, value)
    it = await ran(tmp_path, joined(input_lines(2)), server, output_format="parquet_f32")
    assert it.shown["output_file_id"] is None
    assert {one["error"]["code"] for one in it.errors} == {code}


@pytest.mark.parametrize("moment", ["write", "keep"])
async def test_an_end_that_was_cut_off_is_done_again(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Ends the process."""

    write = outputs.write_parquet

    def cut_off(*arguments: Any) -> None:
        write(*arguments)
        raise Killed

    async with opened(tmp_path, RowsServer()) as place:
        batch_id = await place.made(joined(input_lines(3)), output_format="parquet_f32")
        with monkeypatch.context() as patch:
            if moment == "write":
                patch.setattr(outputs, "write_parquet", cut_off)
            else:
                keep = place.files.keep

                async def kept(*arguments: str) -> None:
                    await keep(*arguments)
                    raise Killed

                patch.setattr(place.files, "keep", kept)
            with contextlib.suppress(BaseExceptionGroup, Killed):
                await asyncio.create_task(place.batches.run())
    async with opened(tmp_path, RowsServer()) as place:
        shown = await ended(place, batch_id)
        assert len(await table_of(place, shown["output_file_id"])) == 6
    assert len(list((tmp_path / "files").iterdir())) == 2


@pytest.mark.parametrize("output_format", ["csv", "parquet", "PARQUET_F16", ""])
async def test_an_unknown_format_is_refused(output_format: str, tmp_path: Path) -> None:
    async with opened(tmp_path, FakeServer()) as place:
        with pytest.raises(InvalidRequest, match="must be one of jsonl, parquet_f16, parquet_f32"):
            await place.made(b"", output_format=output_format)


async def test_scores_have_no_parquet_nor_has_a_server_without_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, FakeServer()) as place:
        with pytest.raises(InvalidRequest, match="/v1/embeddings alone"):
            await place.made(b"", endpoint="/v1/score", output_format="parquet_f16")
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(InvalidRequest, match="pip install"):
            await place.made(b"", output_format="parquet_f16")
