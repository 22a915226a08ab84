"""Two things that meet in one batch: texts of several adapters, and what texts of one adapter begin with alike."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from peft import LoraConfig

from engine.registry import OPENVINO, TRANSFORMERS
from tests.engine.convert.adapters import Adapted
from tests.engine.engines import difference, load, rows
from tests.engine.tiny_models import Reference, arbitrary, batch, save

A, *TAILS = arbitrary((31, 4, 9, 1, 7, 12, 5))
SEQUENCES = [A[:20] + tail for tail in TAILS]
SHARED = (0, 20, 20, 0, 20, 0)  # with another adapter nothing is shared
ADAPTERS = (1, 1, 1, 0, 0, 2)


@pytest.mark.filterwarnings("ignore:`is_gradient:FutureWarning")
@pytest.mark.parametrize("engine", [OPENVINO, TRANSFORMERS])
def test_each_text_has_its_own_embedding(engine: str, tmp_path: Path) -> None:
    base = Reference(save("qwen3", tmp_path / "base"))
    adapted = []
    for name, layers, rank in (("one", ["q_proj", "down_proj"], 4), ("two", ["v_proj"], 3)):
        config = LoraConfig(r=rank, target_modules=layers, init_lora_weights=False)
        adapted.append(Adapted(tmp_path / "base", config, tmp_path / name))
    loaded = load(
        engine, tmp_path / "base", pooling="mean", loras=tuple((name, str(tmp_path / name)) for name in ("one", "two"))
    )
    assert loaded.info.shares_prefixes
    given = replace(batch(SEQUENCES), adapters=np.array(ADAPTERS, np.int32), shared=np.array(SHARED, np.int32))
    found = rows(loaded, given)
    other_ids = given.token_ids.copy()
    other_ids[given.cu_seqlens[2] + 5] += 1  # in a prefix that is computed for a longer text, and so is not read
    of_other_ids = rows(loaded, replace(given, token_ids=other_ids))
    loaded.close()
    models: list[Reference | Adapted] = [base, *adapted]
    expected = np.stack(
        [models[number].token_rows(each).mean(0) for number, each in zip(ADAPTERS, SEQUENCES, strict=True)]
    )
    of_base = np.stack([base.token_rows(each).mean(0) for each in SEQUENCES])
    assert difference(found, expected) <= 1e-5
    assert difference(of_other_ids, expected) <= 1e-5
    is_other = np.abs(found - of_base).max(axis=1) > 1e-2
    assert is_other.tolist() == [number > 0 for number in ADAPTERS]
