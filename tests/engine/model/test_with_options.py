"""--max-input-length holds in every engine, not only at the tokenizer: also where ids come from elsewhere."""

from pathlib import Path

import pytest

from engine import registry
from engine.model import model_folder
from engine.types import ModelError
from tests.engine.engines import load_options
from tests.engine.test_static import save_static
from tests.engine.tiny_models import save
from tests.parity.repositories.folders import save_small
from tests.parity.repositories.models.encoders_2026 import REPOSITORIES
from tests.tiers import full


@pytest.mark.parametrize("engine", ["transformers", "static", *full("fused", "openvino")])
def test_an_engine_takes_no_more_tokens_than_it_was_told(tmp_path: Path, engine: str) -> None:
    """The tensorrt-llm engine's is in tests/engine/tensorrt_llm/test_offer.py."""
    folder = save_static(tmp_path / "model") if engine == "static" else save("bert", tmp_path / "model")
    loaded = registry.load(engine, name="m", reason="asked", options=load_options(folder, max_seqlen=9))
    loaded.close()
    assert (loaded.info.max_seqlen, loaded.limits.max_seqlen) == (9, 9)


def test_a_dtype_that_the_authors_rule_out_is_refused(tmp_path: Path) -> None:
    (repository,) = (each for each in REPOSITORIES if each.name == "google/embeddinggemma-2")
    with pytest.raises(ModelError, match=r"float16: .* take float32 or bfloat16"):
        model_folder.read_with(load_options(save_small(repository, tmp_path), dtype="float16"))
