"""A whole server with a model whose card asks for prompts: only who asks for one gets it."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.server_e2e.expected import FAKE, minilm, rows_of
from tests.server_e2e.running import serving


@pytest.mark.full  # without processes: tests/server/supervisor/test_model_plan.py
@pytest.mark.holds("Prompts")
def test_a_card_s_prompt_is_put_before_what_asks_for_it(tmp_path: Path) -> None:
    folder = tmp_path / "e5-base-v2"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm() / name, folder)
    with serving("--model-id", str(folder), *FAKE, folder=tmp_path) as server:
        asked = [{}, {"input_type": "query"}, {"task": "retrieval.passage"}, {"prompt_name": "passage"}]
        for fields, prompt in zip(asked, ["", "query: ", "passage: ", "passage: "], strict=True):
            reply = server.embed(["hello"], encoding_format="bytes", **fields)
            assert np.array_equal(np.frombuffer(reply.body, "<f4"), rows_of([prompt + "hello"])[0]), fields
        (model,) = server.request("GET", "/info").json()["models"]
        assert model["prompts"]["query"] == "query: "
        assert model["prompts_source"] == "the card of e5-base-v2, known here; told by --model-id"
        assert model["special_tokens"] == "as tokenizer.json says"
