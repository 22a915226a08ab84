"""The same pipelines in a process, beside a server and on a real Ray Serve: the same results, the same errors."""

import copy
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from embedline.pipelines import PipelineError, PipelineTimeout, StepFailed, StepTimeout
from embedline.pipelines.on_ray import application
from tests.embedline.pipelines.placed import RUNS, search
from tests.server.ray.cluster import python_with_ray
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import ROOT, Server, serving

FILE = Path(__file__).with_name("placed.py")
MODEL = ("--model-id", "sentence-transformers/all-MiniLM-L6-v2", "--served-model-name", "any")


def beside(server: Server, name: str, given: dict[str, Any]) -> Any:
    """What a run over HTTP gives; errors as the program has them, as far as an answer tells."""
    answer = server.request("POST", f"/pipelines/{name}", given)
    return answer.json() if answer.status == 200 else [answer.status, answer.json()["error"]["message"]]


@pytest.mark.ray
@pytest.mark.nightly
def test_each_place_gives_the_same(tmp_path: Path) -> None:
    python = python_with_ray()
    found = tmp_path / "found.json"
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,  # paths of sockets are short
        serving(*FAKE, *MODEL, "--pipelines", str(FILE), folder=tmp_path) as server,
    ):
        program = subprocess.run(
            [python, "-P", str(FILE), f"http://127.0.0.1:{server.port}", str(found)],
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}:{FILE.parent}",
                "RAY_ADDRESS": "local",
                "RAY_TMPDIR": folder,
                "RAY_USAGE_STATS_ENABLED": "0",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert program.returncode == 0, program.stderr
        here, on_ray = json.loads(found.read_text())
        http = [beside(server, one.name, given) for one, given in RUNS]
    assert on_ray == here
    assert [len(here[0]), here[1][:2]] == [2, ["InvalidInput", "number must be at least 1"]]
    assert here[4] == ["StepFailed", "step missing failed: KeyError: 'b'", "missing"]
    assert [http[number] for number in (0, 2, 3)] == [here[number] for number in (0, 2, 3)]
    assert http[1] == [400, "number must be at least 1"]
    assert http[4] == [500, "step missing failed: KeyError"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"options": {"Cut": {}}}, "no step of search is called Cut; there are embed, index, retrieve, cut, search"),
        ({}, "step embed takes an AsyncClient: give application"),
    ],
    ids=["options", "client"],
)
def test_a_deployment_that_makes_no_sense_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        application(search, **given)


@pytest.mark.parametrize(
    "error",
    [StepFailed("embed", "failed"), StepTimeout("embed", "late"), PipelineTimeout("search", 2.0, ["a", "b"])],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_sent(error: StepFailed | PipelineTimeout) -> None:
    """As pickle does it, which calls the same methods as copy."""
    sent = copy.copy(error)
    assert (type(sent), str(sent), vars(sent)) == (type(error), str(error), vars(error))
