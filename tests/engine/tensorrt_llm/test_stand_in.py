"""The stand-in behaves as upstream is known to, so that what is tested on it means something."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.tensorrt_llm import private
from tests.engine.sentence_models import save_words
from tests.engine.tensorrt_llm.models import FAMILIES, embedding
from tests.engine.tensorrt_llm.stand_in import library, load
from tests.server_e2e.running import PATIENCE

LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_num_tokens": 64, "max_seq_len": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = embedding("qwen3", tmp_path_factory.mktemp("model") / "m", "last").folder
    save_words(found)
    return found


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    with library():
        import tensorrt_llm.llmapi

        yield tensorrt_llm.llmapi


def made(api: Any, folder: Path, **others: Any) -> Any:
    model_kwargs = {"architectures": ["Qwen3ForTextEmbedding"], "torch_dtype": "bfloat16"}
    return api.LLM(str(folder), encode_only=True, model_kwargs=model_kwargs, **LIMITS, **others)


def test_a_second_call_meanwhile_is_our_mistake(api: Any, folder: Path) -> None:
    llm = made(api, folder)
    inside, done = threading.Event(), threading.Event()
    forward = llm._encoder_executor.model_engine.encoder_forward

    def slow(*args: Any, **kwargs: Any) -> Any:
        inside.set()
        done.wait(PATIENCE)
        return forward(*args, **kwargs)

    llm._encoder_executor.model_engine.encoder_forward = slow
    first = threading.Thread(target=llm.encode, args=([[5]],), kwargs={"return_raw_logits": True})
    first.start()
    inside.wait(PATIENCE)
    try:
        with pytest.raises(AssertionError, match="race for buffers"):
            llm.encode([[6]], return_raw_logits=True)
    finally:
        done.set()
        first.join()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mask_that_a_model_is_given_never_reaches_attention(family: str, api: Any, tmp_path: Path) -> None:
    """Qwen3's model drops it without a word; the others fail of it, Qwen2's only in the MLP."""
    model = load(embedding(family, tmp_path / "m", "last").folder, pooling="last-token")._encode.__self__  # type: ignore[attr-defined]
    engine = model.llm._encoder_executor.model_engine
    inputs = engine.runner._eager({"input_ids": [5, 6, 7], "seq_lens": [3]})
    given = {name: inputs[name] for name in ("attn_metadata", "input_ids", "position_ids")}
    mask = private.full_mask()
    with torch.inference_mode():
        causal = engine.model.model(**given)
        if family == "qwen3":
            assert torch.equal(engine.model.model(**given, attention_mask=mask), causal)
            return
        with pytest.raises(TypeError, match="attention_mask"):
            engine.model.model(**given, attention_mask=mask)
