"""Files and batches of a whole server with the openai SDK, also past the limit of other bodies and across a kill."""

import base64
import io
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import openai
import pyarrow.parquet as pq
import pytest

from tests.server.jobs.served.asking import ended as request_ended
from tests.server.jobs.served.test_job_faults import ROLES, SEED
from tests.server_e2e.expected import FAKE, SPREAD, rows_of
from tests.server_e2e.running import PATIENCE, Server, serving

KEYS = ("--api-key", "first", "--api-key", "second")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("batches")
    flags = (*FAKE, "--jobs", str(folder / "jobs"), "--payload-limit", "65536", *KEYS)
    with serving(*flags, folder=folder) as server:
        yield server


def client(server: Server, key: str = "first") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, max_retries=0)


def lines(count: int, **fields: str) -> bytes:
    common = {"method": "POST", "url": "/v1/embeddings"}
    rows = (
        {"custom_id": f"c{n}", **common, "body": {"model": "m", "input": f"text {n}", **fields}} for n in range(count)
    )
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def uploaded(api: openai.OpenAI, content: bytes) -> openai.types.FileObject:
    return api.files.create(file=("in.jsonl", content), purpose="batch")


def batch_of(api: openai.OpenAI, file_id: str, **metadata: str) -> openai.types.Batch:
    """A new batch of embeddings."""
    return api.batches.create(
        input_file_id=file_id, endpoint="/v1/embeddings", completion_window="24h", metadata=metadata or openai.omit
    )


def ended(api: openai.OpenAI, batch_id: str, *, seconds: float = PATIENCE) -> openai.types.Batch:
    deadline = time.monotonic() + seconds
    while (batch := api.batches.retrieve(batch_id)).status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < deadline, batch
    return batch


def ended_through_restarts(api: openai.OpenAI, batch_id: str) -> openai.types.Batch:
    while True:
        try:
            return ended(api, batch_id)
        except (openai.InternalServerError, openai.APIConnectionError):
            continue  # a process is being started again


def test_a_batch_by_the_sdk(server: Server) -> None:
    api = client(server)
    content = lines(1000).replace(b'"c500"', b'"c500', 1)  # a broken line
    file = uploaded(api, content)
    assert (file.bytes, file.filename, file.purpose) == (len(content), "in.jsonl", "batch")
    assert api.files.content(file.id).read() == content
    batch = ended(api, batch_of(api, file.id).id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 1000, "completed": 999, "failed": 1}
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    found = [json.loads(line) for line in api.files.content(batch.output_file_id).text.splitlines()]
    assert [line["custom_id"] for line in found] == [f"c{n}" for n in range(1000) if n != 500]
    one = api.embeddings.create(model="m", input="text 7", encoding_format="float")
    assert found[7]["response"]["body"]["data"][0]["embedding"] == pytest.approx(one.data[0].embedding)
    (error,) = [json.loads(line) for line in api.files.content(batch.error_file_id).text.splitlines()]
    assert (error["error"]["code"], error["error"]["line"]) == ("invalid_line", 501)
    assert batch.id in [one.id for one in api.batches.list(limit=1)]
    assert api.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        api.files.retrieve(file.id)


def test_rows_as_a_parquet_file(server: Server) -> None:
    api = client(server)
    bodies: list[dict[str, object]] = [
        {"input": ["text 0", "text 1"]},
        {"input": "text 2", "encoding_format": "float", "dimensions": 16},
        {"input": "text 3", "embed_dtype": "int8"},
    ]
    content = [
        {"custom_id": f"c{n}", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", **body}}
        for n, body in enumerate(bodies)
    ]
    file = uploaded(api, "\n".join(map(json.dumps, content)).encode())
    batch = ended(api, batch_of(api, file.id, output_format="parquet_f16").id)
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    table = pq.read_table(io.BytesIO(api.files.content(batch.output_file_id).read())).to_pydict()
    assert (table["custom_id"], table["index"]) == (["c0", "c0", "c1"], [0, 1, 0])
    one = api.embeddings.create(model="m", input="text 1", encoding_format="float")
    assert table["embedding"][1] == pytest.approx(one.data[0].embedding, rel=1e-3)
    assert len(table["embedding"][2]) == 16
    (error,) = [json.loads(line) for line in api.files.content(batch.error_file_id).text.splitlines()]
    assert (error["custom_id"], error["error"]["code"]) == ("c2", "not_float32")


@pytest.mark.holds("Jobs are seen with their own key alone")
def test_files_and_batches_of_another_key_are_not_there(server: Server) -> None:
    api, other = client(server), client(server, "second")
    file = uploaded(api, lines(1))
    batch = batch_of(api, file.id)
    for ask in (
        lambda: other.files.retrieve(file.id),
        lambda: other.files.content(file.id),
        lambda: other.files.delete(file.id),
        lambda: other.batches.retrieve(batch.id),
        lambda: other.batches.cancel(batch.id),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    assert list(other.files.list()) == []
    assert list(other.batches.list()) == []


@pytest.mark.holds("Jobs are seen with their own key alone")
def test_requests_are_their_keys_own(server: Server) -> None:
    mine, hello = {"authorization": "Bearer first"}, {"input": "hello", "model": "any"}
    request_id = server.request("POST", "/async_predict", {"model_input": hello}, **mine).json()["request_id"]
    assert request_ended(server, request_id, **mine)["status"] == "SUCCEEDED"
    for path in (f"/async_request/{request_id}", f"/async_request/{request_id}/result"):
        assert server.request("GET", path, authorization="Bearer second").status == 404
        assert server.request("GET", path).status == 401
    assert server.request("POST", "/v1/embeddings", hello, x_api_key="a.key-1").status == 401


def test_another_purpose_is_refused_and_leaves_nothing(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose must be batch"):
        client(server).files.create(file=("in.jsonl", lines(9)), purpose="fine-tune")


@pytest.mark.faults
@pytest.mark.parametrize(
    ("num_kills", "num_lines"),
    [
        pytest.param(5, 20_000, marks=pytest.mark.full),
        pytest.param(50, 200_000, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
)
@pytest.mark.holds("Each line of a batch has exactly one line of output")
def test_a_batch_outlives_kills_of_any_process(
    num_kills: int, num_lines: int, tmp_path: Path, reached: Callable[[str, str], None]
) -> None:
    choose = random.Random(SEED)
    roles = [choose.choice(ROLES) for _ in range(num_kills)]
    with serving(*FAKE, *SPREAD, "--jobs", str(tmp_path / "jobs"), folder=tmp_path) as server:
        api = client(server)
        file = uploaded(api, lines(num_lines, encoding_format="base64"))
        batch = batch_of(api, file.id)
        for number, role in enumerate(roles, 1):
            wait_for_lines(api, batch.id, number * num_lines // (num_kills + 2))
            seen = len(server.log.lines)
            server.kill(role)
            server.log.wait_for(f"{role} is ready", after=seen)
        batch = ended_through_restarts(api, batch.id)
        assert batch.output_file_id is not None
        assert batch.error_file_id is None
        found = [json.loads(line) for line in api.files.content(batch.output_file_id).text.splitlines()]
    assert [line["custom_id"] for line in found] == [f"c{number}" for number in range(num_lines)]
    rows = b"".join(base64.b64decode(line["response"]["body"]["data"][0]["embedding"]) for line in found)
    expected = rows_of([f"text {number}" for number in range(num_lines)])
    assert np.array_equal(np.frombuffer(rows, np.float32).reshape(expected.shape), expected)
    reached(
        "batches",
        f"{num_kills} kills of {len(set(roles))} kinds of processes: 0 of {num_lines:,} lines lost, wrong or twice",
    )


def wait_for_lines(api: openai.OpenAI, batch_id: str, count: int) -> None:
    """Until so many have been answered."""
    while True:
        with suppress(openai.InternalServerError, openai.APIConnectionError):  # a process is being started again
            counts = api.batches.retrieve(batch_id).request_counts
            if counts is not None and counts.completed >= count:
                return
