"""Other people's clients, unchanged, each in its own environment: values, order, errors and retries.

`make clients` makes the environments; what is missing is skipped by its name. The scripts stand beside this file, in
sdks/, frameworks/ and node/.
"""

import contextlib
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.clients.stumbling import StumblingServer
from tests.server_e2e.expected import FAKE, rows_of
from tests.server_e2e.running import ROOT, Server, serving
from tokenizer_pool import cl100k

pytestmark = [pytest.mark.clients, pytest.mark.full]

HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("EMBEDLINE_CLIENTS", ROOT / ".clients"))
SCRIPTS = sorted(
    str(path.relative_to(HERE))
    for path in [*HERE.glob("sdks/*.py"), *HERE.glob("frameworks/*.py"), *HERE.glob("node/*.mjs")]
    if path.stem != "report"
)
KEY = "a-key-of-the-test"
TEXTS = ["hello world", "naïve 日本語 🙂", "the ferry leaves at seven", "word " * 300]
QUERY = "when does the ferry leave?"
DOCUMENTS = ["the ferry leaves at seven", "hello world", "a long way to go", "naïve 日本語", "word word"]
# they give up at the first 429
NO_RETRIES = {"sdks/hugging_face.py", "sdks/infinity.py", "sdks/ollama_sdk.py", "node/hugging_face.mjs"}
every_script = pytest.mark.parametrize("script", SCRIPTS)


def ask(script: str, url: str, *, key: str = KEY, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the script's cases found, by their names."""
    environment = script.split("/")[0]
    if environment == "node":
        program = ENVIRONMENTS / "node/scripts" / Path(script).name
        command = ["node", "--preserve-symlinks", "--preserve-symlinks-main", str(program)]
    else:
        program = ENVIRONMENTS / environment / "bin/python"
        command = [str(program), "-W", "ignore", str(HERE / script)]
    if not program.exists():
        pytest.skip(f"{script} needs {ENVIRONMENTS / environment} (make clients)")
    task = {"url": url, "key": key, "texts": TEXTS, "query": QUERY, "documents": DOCUMENTS, "only": only}
    variables = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(
        command,
        input=json.dumps(task).encode(),
        capture_output=True,
        timeout=200,
        check=False,
        env={**variables, "PYTHONPATH": f"{HERE / 'sdks'}{os.pathsep}{ROOT}", "CHROMA_KEY": key},
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(*FAKE, "--api-key", KEY, "--token-ids", "cl100k", folder=tmp_path_factory.mktemp("sdks")) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def _vocabulary_of_tiktoken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where LangChain's tokenizer looks for it before it would download it: under the SHA-1 of its address."""
    folder = tmp_path_factory.mktemp("tiktoken")
    address = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
    file = cl100k.installed()
    assert file is not None
    (folder / hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()).symlink_to(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
        yield


def scaled(rows: NDArray[Any]) -> NDArray[Any]:
    """Some APIs normalise, so directions are compared; those of two texts differ."""
    unit: NDArray[Any] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def cosines() -> NDArray[np.float64]:
    query, *documents = scaled(rows_of([QUERY, *DOCUMENTS]).astype(np.float64))
    return np.array([row @ query for row in documents])


def signs() -> NDArray[np.uint8]:
    return np.packbits(rows_of(TEXTS) > 0, axis=1)


def check_value(case: str, value: Any) -> None:
    """What is neither rows nor ranked documents."""
    match case:
        case "similarity":
            assert np.allclose(value, cosines(), atol=1e-5)
        case "embed_signs":
            signed, unsigned, widths = value
            assert np.array_equal(unsigned, signs())
            assert np.array_equal(signed, signs().astype(np.int16) - 128)
            assert widths == [64] * len(TEXTS)
        case "embed_documents":
            rows, signed = value
            assert np.allclose(rows, rows_of(DOCUMENTS), atol=1e-4)
            assert np.array_equal(np.uint8(np.array(signed) + 128), np.packbits(rows_of(DOCUMENTS) > 0, axis=1))
        case "models":
            assert len(value) == 1
        case "state":
            assert value == [True, [True]]
        case _:
            raise AssertionError(f"no reference for {case}")


def check(case: str, result: dict[str, Any]) -> None:
    assert "error" not in result, f"{case}: {result}"
    if "rows" in result:
        assert np.allclose(scaled(np.array(result["rows"])), scaled(rows_of(TEXTS)), atol=1e-4), case
    elif "ranked" in result:
        order = [index for index, _ in result["ranked"]]
        found = [score for _, score in result["ranked"]]
        assert order == np.argsort(-cosines()).tolist(), case
        assert np.allclose(found, cosines()[order], atol=1e-4), case
    else:
        check_value(case, result["value"])


@every_script
def test_every_case_gives_the_right_values_in_the_right_order(script: str, server: Server) -> None:
    results = ask(script, f"http://127.0.0.1:{server.port}")
    assert results
    for case, result in results.items():
        check(case, result)


@every_script
def test_a_wrong_key_is_an_error_of_the_client_s_own(script: str, server: Server) -> None:
    result = ask(script, f"http://127.0.0.1:{server.port}", key="a-wrong-key", only=("embed",))["embed"]
    assert re.search("401|Unauthorized|Authentication|valid API key", f"{result['error']} {result['message']}")


@every_script
def test_who_is_told_to_come_back_does_or_says_why_not(script: str, server: Server) -> None:
    with contextlib.closing(StumblingServer(server.port)) as stumbling:
        result = ask(script, stumbling.url, only=("embed",))["embed"]
    assert stumbling.refused == 1
    if script in NO_RETRIES:
        assert re.search("429|overload|too much work", f"{result['error']} {result['message']}", re.IGNORECASE)
    else:
        check("embed", result)
