"""The fused engine's forwards over the same models: what the table says of it, computed in float32 by its ops' meaning.

Its kernels are held against those ops elsewhere, and what surrounds them by tests of their own.
"""

from pathlib import Path

import numpy as np
import pytest

from engine.fused.adapters import ADAPTERS
from engine.model.coverage import ARCHITECTURES, Architecture, Use
from engine.model.model_folder import read
from engine.types import OutputKind
from tests.engine.engines import difference
from tests.engine.fused.model.models import load_fused
from tests.parity.architectures import BGE_M3
from tests.parity.folders import num_types, save
from tests.parity.references import Reference
from tests.parity.test_parity import SEED, TOLERANCE
from tests.parity.texts import packed, random_texts


def test_the_table_says_which_architectures_are_known() -> None:
    for row in ARCHITECTURES:
        if row.name != BGE_M3:  # whose heads are another engine's
            assert row.is_fused == (row.model_type in ADAPTERS), row.name


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ARCHITECTURES if row.is_fused])
def test_a_batch_equals_the_library_on_one_text_at_a_time(row: Architecture, tmp_path: Path) -> None:
    folder = save(row.name, Use.EMBED, tmp_path / "model")
    texts = random_texts(np.random.default_rng(SEED), read(folder).max_seqlen, num_types=num_types(row.name))
    reference = Reference(row.name, Use.EMBED, folder)
    expected = np.concatenate([reference(text)[OutputKind.TOKENS] for text in texts])
    types = packed(texts, OutputKind.TOKENS).token_type_ids
    rows = load_fused(folder).token_rows([text.ids for text in texts], None if types is None else types.tolist())
    assert difference(rows, expected) <= TOLERANCE
