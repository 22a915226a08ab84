"""The examples of docs/jobs.md print what the page says."""

import base64
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, Example, examples
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import serving
from tests.test_readme import is_as_said, output_of, skip_without

RUN = [
    example for example in examples((ROOT / "docs" / "jobs.md").read_text()) if example.language in ("bash", "python")
]
SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()


@pytest.mark.parametrize("example", RUN, ids=range(len(RUN)))
def test_an_example_prints_what_the_page_says(example: Example, tmp_path: Path) -> None:
    skip_without("bash", "curl")
    (tmp_path / "secrets").write_text(SECRET)
    flags = ("--jobs", str(tmp_path / "kept"), "--jobs-private-webhooks", "--jobs-webhook-secrets", "secrets")
    with serving(*FAKE, *flags, folder=tmp_path) as server:
        code = example.code.replace("http://localhost:8080", f"http://localhost:{server.port}")
        shell = ["bash", "-euo", "pipefail", "-c"] if example.language == "bash" else [sys.executable, "-c"]
        printed = output_of([*shell, code], server, tmp_path)

    assert example.output is not None
    assert is_as_said(printed, example.output), printed
