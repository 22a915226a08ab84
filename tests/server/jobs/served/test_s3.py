"""A whole server whose files lie on a server that speaks S3's protocol."""

import json
import sys
from pathlib import Path

import pytest

from tests.server.backfill.s3 import PYTHON, running_s3
from tests.server.jobs.served.test_batches_sdk import batch_of, client, ended_through_restarts, lines, uploaded
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import serving

pytestmark = [pytest.mark.clients, pytest.mark.full]


def test_files_and_batches_lie_in_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_s3() as s3:
        monkeypatch.setattr(sys, "executable", str(PYTHON))  # which has S3's library
        flags = (*FAKE, "--jobs", str(tmp_path / "jobs"), "--jobs-files", s3.url("files"))
        with serving(*flags, folder=tmp_path, environment=s3.environment) as server:
            api = client(server)
            content = lines(20_000)
            file = uploaded(api, content)
            assert s3.get(f"files/{file.id}") == content
            batch = batch_of(api, file.id)
            while (counts := api.batches.retrieve(batch.id).request_counts) is None or counts.completed < 500:
                pass
            server.kill("jobs 0")
            batch = ended_through_restarts(api, batch.id)
            assert batch.output_file_id is not None
            found = api.files.content(batch.output_file_id).read()
            assert s3.names("files") == sorted([file.id, batch.output_file_id])
            assert s3.get(f"files/{batch.output_file_id}") == found
            assert [json.loads(line)["custom_id"] for line in found.splitlines()] == [f"c{n}" for n in range(20_000)]
            assert list((tmp_path / "jobs" / "files").iterdir()) == []
            for file_id in (file.id, batch.output_file_id):
                api.files.delete(file_id)
            assert s3.names("files") == []
