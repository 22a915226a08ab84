"""Routers: which are served as what, and what is said of the others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoModel

from engine.model import model_folder
from engine.model.tasks import Task, TokenTable, VocabularyWeights
from engine.types import OutputKind
from tests.engine.folder_files import change, write
from tests.engine.model.sentence_folder import refusal
from tests.engine.transformers.routed_models import bare, inference_free, same_for_both

QUERY = "query_0_SparseStaticEmbedding"


def test_queries_without_inference(tmp_path: Path) -> None:
    inference_free(tmp_path / "model")
    found = model_folder.read(tmp_path / "model")
    assert (found.task, found.task_source) == (Task.SPARSE, "document_1_SpladePooling/config.json")
    assert found.outputs is OutputKind.SPARSE
    assert found.heads == (VocabularyWeights(activation="log1p_relu"),)
    assert found.query_table is not None
    assert (found.query_table.folder, sorted(found.query_table.surrounding_ids)) == (QUERY, [2, 3])
    assert (found.path, found.tokenizer_folder) == (tmp_path / "model", "document_0_Transformer")
    assert (found.weights_folder / "model.safetensors").is_file()
    assert found.max_seqlen == 64


def test_a_transformer_in_the_folder_itself(tmp_path: Path) -> None:
    """As opensearch-neural-sparse-encoding-doc has it, with the older class."""
    inference_free(tmp_path / "model")
    for file in (tmp_path / "model" / "document_0_Transformer").iterdir():
        file.rename(tmp_path / "model" / file.name)
    config = json.loads((tmp_path / "model" / "router_config.json").read_text())
    del config["types"]["document_0_Transformer"]
    config["types"][""] = "sentence_transformers.sparse_encoder.models.MLMTransformer.MLMTransformer"
    config["structure"]["document"][0] = ""
    write(tmp_path / "model" / "router_config.json", config)

    found = model_folder.read(tmp_path / "model")

    assert (found.task, found.tokenizer_folder) == (Task.SPARSE, "")
    assert found.query_table == TokenTable(folder=QUERY, surrounding_ids=found.query_table.surrounding_ids)  # type: ignore[union-attr]


def test_routes_of_the_same_files(tmp_path: Path) -> None:
    same_for_both(tmp_path / "model")
    found = model_folder.read(tmp_path / "model")
    assert (found.task, found.pooling, found.normalize, found.dimensions) == (Task.EMBED, "mean", True, 32)
    assert (found.tokenizer_folder, found.query_table) == ("query_0_Transformer", None)


def test_routes_after_a_shared_transformer_are_refused(tmp_path: Path) -> None:
    shared = [Transformer(bare(tmp_path / "bare", AutoModel)), Pooling(32, "mean")]
    router = Router.for_query_document([Dense(32, 8)], [Dense(32, 8)])
    model = SentenceTransformer(modules=[*shared, router, Normalize()], device="cpu")
    model.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    assert refusal(tmp_path / "model") == "modules.json has a Router, whose routes are models of their own"


def routes(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder / "router_config.json", **changes)


def other_words(folder: Path) -> None:
    change(folder / QUERY / "tokenizer.json", normalizer={"type": "Lowercase"})


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (routes(parameters={"route_mappings": {"('query', None)": "document"}}), 'one route: --model-id "'),
        (routes(structure={"query": [QUERY], "passage": ["document_0_Transformer"]}), "one route: "),
        (routes(structure={"query": [QUERY], "document": ["document_0_Transformer"]}), "one route: "),
        (routes(structure={"query": [QUERY]}), "one route: "),
        (routes(structure={"query": ["elsewhere"]}), "one route: "),
        (routes(structure={"query": []}), "one route: "),
        (routes(structure={"query": 7}), "one route: "),
        (routes(structure=[7]), "'structure'"),
        (routes(types=[7]), "'types'"),
        (routes(types={"../x": "a"}, structure={"query": ["../x"]}), "router_config.json has a path that leads out"),
        (lambda folder: write(folder / "router_config.json", {}), "whose routes are models of their own"),
        (other_words, f"have different tokenizers ({QUERY}/tokenizer.json)"),
        (lambda folder: (folder / QUERY / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda folder: (folder / QUERY / "model.safetensors").unlink(), f"{QUERY} has no model.safetensors"),
        (lambda folder: change(folder / QUERY / "config.json", path="idf.json"), "save it with its weights"),
        (
            lambda folder: change(folder / "document_0_Transformer" / "sentence_bert_config.json", do_lower_case=True),
            "have different tokenizers",
        ),
    ],
)
def test_routes_that_cannot_be_served(spoil: Callable[[Path], object], part: str, tmp_path: Path) -> None:
    inference_free(tmp_path / "model")
    spoil(tmp_path / "model")
    assert part in refusal(tmp_path / "model")
