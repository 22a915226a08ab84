"""A classifier's score of a text that ends with padding tokens is that of what is left of it."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from engine.tensorrt_llm.library.trailing import without_trailing

_PAD = 3
_CONFIG = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_labels": 2,
    "pad_token_id": _PAD,
    "initializer_range": 0.3,
}


def test_scores_are_those_of_transformers() -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **_CONFIG)
    model: Any = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
    model.eval()
    for token_ids in ([7, 8, _PAD, _PAD], [7, _PAD, 8, _PAD], [_PAD, _PAD], [7, 8]):
        left = without_trailing(token_ids, _PAD)
        with torch.no_grad():
            scored = model(torch.tensor([token_ids])).logits[0]
            rows = model.model(torch.tensor([list(left)])).last_hidden_state[0]
        torch.testing.assert_close(model.score(rows[-1]), scored, atol=1e-5, rtol=0)
