"""What transformers' own classes make of sequences, one at a time, on the same device.

Shapes: N sequences, S tokens of one, D numbers a row of the backbone, L numbers a row.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from engine.model.json_files import read_object
from engine.model.known_code.qwen2 import REWARD
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, SequenceScores
from engine.rows.with_numpy import load_modules
from engine.selftest.sample_ids import Sequences

Rows = NDArray[np.float32]
_SCORE = "score."


def rows_of(folder: ModelFolder, sequences: Sequences, *, dtype: torch.dtype, device: str) -> Rows:
    """Rows [N, L], raw where they are scores."""
    compute = _computing(folder, dtype, device)
    with torch.inference_mode():
        rows = [
            compute(torch.from_numpy(sequence.astype(np.int64))[None].to(device)).float().cpu()
            for sequence in sequences
        ]
    found: Rows = torch.stack(rows).numpy()
    return found if folder.heads else load_modules(folder.path, folder.steps)(found)


def _computing(folder: ModelFolder, dtype: torch.dtype, device: str) -> Callable[[Tensor], Tensor]:
    """From ids [1, S] to a row [L]."""

    def loaded(purpose: Any) -> Any:
        model = purpose.from_pretrained(folder.path, dtype=dtype, attn_implementation="eager", use_safetensors=True)
        return model.eval().to(device)

    if folder.architectures[:1] == (REWARD,):
        return _rewarding(folder, loaded(AutoModel), dtype, device)
    match folder.heads:
        case (SequenceScores(),):
            scoring = loaded(AutoModelForSequenceClassification)
            return lambda ids: _logits(scoring, ids)[0]
        case (AnswerScore() as answer,):
            generating = loaded(AutoModelForCausalLM)
            return lambda ids: _answer(_logits(generating, ids)[0, -1], answer)
    return _embedding(folder, loaded(AutoModel))


def _logits(model: Any, ids: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=ids).logits
    return logits


def _answer(logits: Tensor, answer: AnswerScore) -> Tensor:
    yes = logits[answer.yes_id].float()
    return (yes if answer.no_id is None else yes - logits[answer.no_id].float())[None]


def _embedding(folder: ModelFolder, model: Any) -> Callable[[Tensor], Tensor]:
    if read_object(folder.path / "config.json").get("is_causal") is False:
        _unmask(model.layers)
    (pooling,) = folder.poolings

    def compute(ids: Tensor) -> Tensor:
        token_rows: Tensor = model(input_ids=ids, use_cache=False).last_hidden_state[0].float()
        return token_rows.mean(dim=0) if pooling == "mean" else token_rows[-1 if pooling == "last" else 0]

    return compute


def _unmask(layers: Iterable[Any]) -> None:
    """Older versions of the library know no is_causal; without a mask, its plain attention has none."""

    def unmasked(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: forward(*args, **{**kwargs, "attention_mask": None})

    for layer in layers:
        layer.self_attn.forward = unmasked(layer.self_attn.forward)


def _rewarding(folder: ModelFolder, model: Any, dtype: torch.dtype, device: str) -> Callable[[Tensor], Tensor]:
    """Its own code's layers on the last token."""
    stored = load_file(folder.path / "model.safetensors")
    layers = {name.removeprefix(_SCORE): tensor for name, tensor in stored.items() if name.startswith(_SCORE)}
    size = folder.hidden_size
    score = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 1)).to(device, dtype)
    score.load_state_dict(layers)

    def compute(ids: Tensor) -> Tensor:
        row: Tensor = score(model(input_ids=ids, use_cache=False).last_hidden_state[0, -1])
        return row

    return compute
