"""IN and OUT at hf://, on a hub of this machine: what is there is read. Nothing was ever written to one."""

import shutil
from pathlib import Path

import pytest

from tests.engine.store.local_hub import MODEL, serving_hub
from tests.server.backfill.jobs import check, command, end, texts, write_jsonl
from tests.server_e2e.expected import DIMENSIONS

COUNT = 200
ENGINE = ("--engine", "fake", "--fake-dim", str(DIMENSIONS))


@pytest.mark.full
def test_an_input_and_a_job_on_the_hub_are_read(tmp_path: Path) -> None:
    served, out = tmp_path / "hub", tmp_path / "out"
    served.mkdir()
    write_jsonl(served / "in.jsonl", texts(COUNT))
    with serving_hub(served) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "NO_PROXY": "*"}
        form = ("--id-column", "key", "--output-dtype", "float32", "--shard-rows", "50", "--max-errors", "3")
        job = command(f"hf://{MODEL}/in.jsonl", out, *form, *ENGINE, environment=environment)
        assert end(job)[0] == 0
        check(out, texts(COUNT), [f"k{number}" for number in range(COUNT)])
        shutil.copytree(out, served / "out")
        (served / "out" / "part-00002.parquet").unlink()
        _, status, said = end(command("any", f"hf://{MODEL}/out", "--status", environment=environment))
        assert (status["parts"], status["parts_done"]) == (4, 3), said
