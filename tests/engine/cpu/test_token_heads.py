"""What the compiled engines make of token rows: bge-m3's outputs, rows of hidden tokens, prompts left out."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers.sentence_transformer.modules import Pooling

from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.model.tasks import Dense, LateInteraction, TokenVectors, TokenWeights
from engine.types import EXPANSION_TOKEN, PROMPT_TOKEN, OutputKind
from tests.engine.cpu.engines import both_ways, load, load_with_heads, sparse
from tests.engine.engines import difference, results
from tests.engine.tiny_models import HIDDEN_SIZE, VOCAB_SIZE, Reference, arbitrary, batch, save
from tests.tiers import full

SEQUENCES = arbitrary((5, 17, 1, 30, 9, 9, 13))


def save_bge_m3(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The two files beside the model."""
    save("xlm-roberta", folder)
    torch.manual_seed(2)
    sparse = {"weight": torch.randn(1, HIDDEN_SIZE), "bias": torch.randn(1)}
    colbert = {"weight": torch.randn(20, HIDDEN_SIZE), "bias": torch.randn(20)}
    save_file(sparse, folder / "sparse_linear.safetensors")
    save_file(colbert, folder / "colbert_linear.safetensors")
    return sparse, colbert


COLBERT = Dense(
    folder="colbert_linear.safetensors", in_features=HIDDEN_SIZE, out_features=20, has_bias=True, activation="Identity"
)


def test_bge_m3_from_one_forward(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    lexical_weights, colbert = save_bge_m3(folder)
    heads = (TokenWeights(unused_ids=(0, 1, 2, 3, 9)), TokenVectors(steps=(COLBERT,), dimensions=20))
    kinds = OutputKind.POOLED | OutputKind.TOKENS | OutputKind.SPARSE | OutputKind.MULTI_VECTOR
    sequences = [*SEQUENCES, [9, 12, 9, 12, 13, 2]]
    loaded = load_with_heads(folder, heads, bare=save("xlm-roberta", tmp_path / "bare"), pooling="cls")
    assert loaded.info.outputs == kinds
    assert (loaded.info.dimensions, loaded.info.token_dimensions) == (HIDDEN_SIZE, HIDDEN_SIZE)
    found = both_ways(loaded, sequences, kinds)
    loaded.close()

    reference = Reference(folder)
    token_rows = [torch.from_numpy(reference.token_rows(sequence)) for sequence in sequences]
    vectors = torch.cat([rows @ colbert["weight"].T + colbert["bias"] for rows in token_rows])
    lexical = np.zeros((len(sequences), VOCAB_SIZE), np.float32)
    for number, (sequence, rows) in enumerate(zip(sequences, token_rows, strict=True)):
        scores = (rows @ lexical_weights["weight"].T + lexical_weights["bias"])[:, 0].tolist()
        for token_id, weight in zip(sequence, scores, strict=True):
            lexical[number, token_id] = max(lexical[number, token_id], weight)
    lexical[:, [0, 1, 2, 3, 9]] = 0
    for each in found:
        assert difference(each[OutputKind.POOLED].values, reference.pooled(sequences, "cls")) <= 1e-5
        assert difference(each[OutputKind.TOKENS].values, torch.cat(token_rows).numpy()) <= 1e-5
        expected = torch.nn.functional.normalize(vectors, dim=-1).numpy()
        assert difference(each[OutputKind.MULTI_VECTOR].values, expected) <= 1e-5
        assert difference(sparse(each, len(sequences)), lexical) <= 1e-5


@pytest.mark.parametrize("family", ["bert", *full("modernbert", "deberta-v2")])
def test_tokens_that_others_do_not_see(family: str, tmp_path: Path) -> None:
    """ColBERT's queries are filled up with masks, which have rows all the same."""
    folder = save(family, tmp_path / "model")
    head, late = TokenVectors(steps=(), dimensions=HIDDEN_SIZE, normalize=False), LateInteraction(expansion_id=4)
    loaded = load_with_heads(folder, (head,), late=late)
    sequences, num_filled = arbitrary([8, 8, 7, 30]), (3, 5, 0, 20)  # 20 are more than ModernBERT's window of 6
    types = [
        kind
        for sequence, filled in zip(sequences, num_filled, strict=True)
        for kind in [0] * (len(sequence) - filled) + [EXPANSION_TOKEN] * filled
    ]
    one = dataclasses.replace(batch(sequences, types), outputs=OutputKind.MULTI_VECTOR)
    hidden = results(loaded, one)[OutputKind.MULTI_VECTOR].values
    seen = results(loaded, dataclasses.replace(one, token_type_ids=None))[OutputKind.MULTI_VECTOR].values
    loaded.close()

    whole, expected = Reference(folder)._model, []
    for sequence, filled in zip(sequences, num_filled, strict=True):
        mask = torch.tensor([[1] * (len(sequence) - filled) + [0] * filled])
        with torch.inference_mode():
            expected.append(whole(torch.tensor([sequence]), attention_mask=mask).last_hidden_state[0].numpy())
    assert difference(hidden, np.concatenate(expected)) <= 1e-5
    assert difference(seen, np.concatenate(expected)) > 1e-3


@pytest.mark.parametrize("pooling", ["mean", "last-token", "weightedmean", *full("cls", "max", "mean_sqrt_len_tokens")])
def test_prompts_are_left_out_of_the_pooling(pooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mode = {"last-token": "lasttoken"}.get(pooling, pooling)
    ours = {"last-token": "last"}.get(pooling, pooling)
    folder, read = save("bert", tmp_path / "model"), model_folder.read

    def taken(path: Path | str, **given: Any) -> ModelFolder:
        return dataclasses.replace(read(path, pooling="mean"), poolings=(ours,))

    monkeypatch.setattr(model_folder, "read", taken)
    loaded = load(folder)
    sequences, num_prompt = arbitrary([9, 7, 2]), (3, 0, 1)
    types = [
        kind
        for sequence, prompt in zip(sequences, num_prompt, strict=True)
        for kind in [PROMPT_TOKEN] * prompt + [0, *[1] * (len(sequence) - prompt - 1)]
    ]
    found = results(loaded, batch(sequences, types))[OutputKind.POOLED].values
    loaded.close()

    module, expected = Pooling(HIDDEN_SIZE, mode, include_prompt=False), []
    whole, at = Reference(folder)._model, 0
    for sequence, prompt in zip(sequences, num_prompt, strict=True):
        plain = torch.tensor([[kind % PROMPT_TOKEN for kind in types[at : at + len(sequence)]]])
        at += len(sequence)
        with torch.inference_mode():
            rows = whole(torch.tensor([sequence]), token_type_ids=plain).last_hidden_state
        given = {"token_embeddings": rows, "attention_mask": torch.ones(1, len(sequence)), "prompt_length": prompt}
        expected.append(module(given)["sentence_embedding"][0].numpy())
    assert difference(found, np.stack(expected)) <= 1e-5


def test_a_text_that_is_nothing_but_a_prompt_is_pooled_as_a_whole(tmp_path: Path) -> None:
    loaded = load(save("bert", tmp_path / "model"), pooling="mean")
    sequences = arbitrary([5, 3])
    found = results(loaded, batch(sequences, [PROMPT_TOKEN] * 5 + [PROMPT_TOKEN, 0, 0]))[OutputKind.POOLED].values
    whole = results(loaded, batch(sequences))[OutputKind.POOLED].values
    loaded.close()
    assert difference(found[:1], whole[:1]) <= 1e-6
    assert difference(found[1:], whole[1:]) > 1e-3
