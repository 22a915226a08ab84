"""Cross-encoders whose score is a pooled row after further modules, as cross-encoder/ettin-reranker-… are.

sentence-transformers itself saves the folders and scores the pairs, one at a time.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from engine.model import model_folder
from engine.model.tasks import Activation, PooledScores, Task
from engine.types import ModelError, OutputKind
from tests.engine.engines import difference, load
from tests.engine.folder_files import change
from tests.parity.engines import compute
from tests.parity.repositories import vocabularies
from tests.parity.repositories.vocabularies import Words
from tests.parity.texts import Text
from tests.tiers import full

SIZE, TOLERANCE = 32, 1e-5
PAIRS = [("where is the ferry", "at seven"), ("a", "b " * 40), ("When?", "Bread, flour and water."), ("zu", "Zug")]
SIZES: dict[str, Any] = {
    **{"vocab_size": vocabularies.SIZE, "hidden_size": SIZE, "intermediate_size": 24, "num_attention_heads": 2},
    **{"num_hidden_layers": 3, "max_position_embeddings": 96, "initializer_range": 0.3, "pad_token_id": 0},
}


def saved(folder: Path, pooling: str = "cls", *, num_scores: int = 1) -> CrossEncoder:
    """A model with arbitrary weights, as it was before it was saved."""
    torch.manual_seed(5)
    bare = folder.with_name("bare")
    windows = {"local_attention": 8, "global_attn_every_n_layers": 2}
    bert: Any = AutoModel.from_config(AutoConfig.for_model("modernbert", **SIZES, **windows))  # type: ignore[no-untyped-call]
    bert.save_pretrained(bare)
    vocabularies.save(Words.MODERN, bare)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(bare / "tokenizer.json"), model_max_length=96, **names
    )
    tokenizer.save_pretrained(bare)
    norm = LayerNorm(SIZE)
    nn.init.normal_(norm.norm.weight), nn.init.normal_(norm.norm.bias)
    chain = [
        Transformer(str(bare)),
        Pooling(SIZE, pooling),
        Dense(SIZE, SIZE, bias=False, activation_function=nn.GELU()),
        norm,
        Dense(SIZE, num_scores, activation_function=nn.Identity(), module_output_name="scores"),
    ]
    model: CrossEncoder = CrossEncoder(modules=chain, device="cpu", activation_fn=nn.Identity())
    model.save_pretrained(str(folder), create_model_card=False)
    return model


def cases() -> Iterator[Any]:
    yield "transformers", "cls"
    yield from full(("openvino", "cls"), ("openvino", "mean"), ("fused", "cls"), ("fused", "mean"))


@pytest.mark.parametrize(("engine", "pooling"), list(cases()))
def test_scores_are_the_librarys(engine: str, pooling: str, tmp_path: Path) -> None:
    library = saved(tmp_path / "model", pooling)
    expected = np.concatenate([library.predict([pair]) for pair in PAIRS])
    assert expected.std() > 0.1
    ids = [library.preprocess([pair])["input_ids"][0].tolist() for pair in PAIRS]
    loaded = load(engine, tmp_path / "model")
    try:
        for some in ([0, 1, 2, 3], *([number] for number in range(len(PAIRS)))):
            found = compute(loaded, [Text(tuple(ids[number])) for number in some], OutputKind.LOGITS)
            scores = np.concatenate([each[OutputKind.LOGITS] for each in found])
            assert difference(scores, expected[some]) <= TOLERANCE
    finally:
        loaded.close()


def test_it_is_a_reranker(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    found = model_folder.read(tmp_path / "model")
    assert (found.task, found.heads, found.template) == (Task.RERANK, (PooledScores(),), None)
    assert (found.activation, found.labels, found.dimensions) == (Activation.IDENTITY, ("LABEL_0",), 1)
    assert found.max_seqlen == 96
    with pytest.raises(ModelError, match="gives a score of a pair, and no embeddings"):
        model_folder.read(tmp_path / "model", task="embed")


@pytest.mark.parametrize(
    ("file", "fields", "says"),
    [
        ("4_Dense/config.json", {"module_output_name": "logits"}, "no Dense in the end whose 'module_output_name' is"),
        ("4_Dense/config.json", {"module_input_name": "token_embeddings"}, "only sentence_embedding is supported"),
        ("2_Dense/config.json", {"module_output_name": "scores"}, "2_Dense/config.json makes 'scores'"),
        ("sentence_bert_config.json", {"modality_config": {"text": {}, "message": {}}}, "put into a chat template"),
    ],
)
def test_another_chain_is_refused(file: str, fields: dict[str, Any], says: str, tmp_path: Path) -> None:
    saved(tmp_path / "model")
    change(tmp_path / "model" / file, **fields)
    with pytest.raises(ModelError, match=says):
        model_folder.read(tmp_path / "model")


def test_several_scores_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "model", num_scores=2)
    with pytest.raises(ModelError, match=r"'out_features' in 4_Dense/config.json is 2"):
        model_folder.read(tmp_path / "model")
