"""The table that makes queries of a sparse model whose documents alone go through a transformer.

sentence-transformers' SparseStaticEmbedding: each token that is in a query has its weight, however often it is there.
The special tokens that are put around a text are not in it.
"""

from pathlib import Path
from typing import Any

from engine.model.arrays import QUERY_WEIGHTS
from engine.model.detection.detected import Files
from engine.model.detection.present import check_weights
from engine.model.detection.side_heads import shapes_in
from engine.model.detection.vocabulary import surrounding_ids
from engine.model.json_files import read_optional
from engine.model.tasks import TokenTable
from engine.types import ModelError

_SPLITS = ("added_tokens", "model", "normalizer", "pre_tokenizer")  # in tokenizer.json
_TOLD = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")  # in tokenizer_config.json


def query_table(files: Files) -> TokenTable | None:
    """None where queries go the way of documents. Raises ModelError where the table can't be served."""
    name = files.sentence.query_table
    if not name:
        return None
    where = files.folder / name
    if "path" in read_optional(where / "config.json"):
        raise ModelError(f"{name}/config.json takes its weights from a JSON file (path); save it with its weights")
    if files.sentence.do_lower_case or _tokenizer(where) != _tokenizer(files.backbone_folder):
        raise ModelError(
            f"queries and documents are not tokenized alike ({name}/tokenizer.json), which is not supported"
        )
    if files.needs_weights:
        check_weights(where)
        shape = shapes_in(where / "model.safetensors").get(QUERY_WEIGHTS, ())
        if len(shape) != 1 or not 0 < shape[0] <= 1 << 24:
            raise ModelError(f"{where}/model.safetensors has no {QUERY_WEIGHTS!r} with a number for each token")
    return TokenTable(folder=name, surrounding_ids=tuple(surrounding_ids(files.backbone_folder)))


def _tokenizer(folder: Path) -> list[Any]:
    """All that says which tokens a text has, but for those around it."""
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"{folder} has no tokenizer.json; save the model with a fast tokenizer")
    tokenizer, told = (read_optional(folder / file) for file in ("tokenizer.json", "tokenizer_config.json"))
    return [*(tokenizer.get(key) for key in _SPLITS), *(told.get(key) for key in _TOLD)]
