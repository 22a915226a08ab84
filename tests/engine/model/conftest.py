"""A folder that tests of reading change."""

from pathlib import Path

import pytest

from tests.engine.folder_files import NO_TENSORS, write
from tests.engine.model.sentence_folder import BERT, POOLING, TRANSFORMER


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good sentence-transformers folder: BERT, mean pooling, no Normalize."""
    (tmp_path / "model.safetensors").write_bytes(NO_TENSORS)
    write(tmp_path / "config.json", BERT)
    write(tmp_path / "modules.json", [TRANSFORMER, POOLING])
    write(tmp_path / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    return tmp_path
