"""A good sentence-transformers folder to change, and the one line with which a changed one is refused."""

from pathlib import Path
from typing import Any

from engine.model import model_folder
from tests.engine import engines

BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 32,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}


def refusal(folder: Path, **flags: Any) -> str:
    """The message of the refusal, which must be one line. flags: see model_folder.read."""
    return engines.refusal(model_folder.read, folder, **flags)
