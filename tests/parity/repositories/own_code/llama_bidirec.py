"""nvidia/llama-nemotron-embed-1b-v2 and -rerank-1b-v2 (llama_bidirectional_model.py in both).

The same code is public in NVIDIA-NeMo/NeMo, nemo/collections/llm/gpt/model/hf_llama_embedding.py: all masks but the
padding's are left out, `pool` with "avg" is the mean, and the scores are divided by `temperature`.
"""

from typing import Any

from torch import Tensor

from engine.types import OutputKind
from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import decoder
from tests.parity.repositories.own_code.forms import FUSED, NORMALIZED, OPENVINO, TRANSFORMERS, Config, Form, Weights

MODEL, RERANKER = "LlamaBidirectionalModel", "LlamaBidirectionalForSequenceClassification"
CODE = "llama_bidirectional_model"
CONFIG: dict[str, Any] = published("llama-nemotron-embed-1b-v2, small")
SCORING: dict[str, Any] = CONFIG | {
    "architectures": [RERANKER],
    "auto_map": {
        "AutoConfig": f"{CODE}.LlamaBidirectionalConfig",
        "AutoModelForSequenceClassification": f"{CODE}.{RERANKER}",
    },
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    "temperature": 0.2,
}


def score(config: Config, weights: Weights, ids: list[int]) -> Tensor:
    mean = decoder.mean(config, weights, ids, prefix="model.")
    scored: Tensor = mean @ weights["score.weight"].T / config["temperature"]
    return scored


FORMS = {
    "llama-nemotron-embed-1b-v2": Form(
        config=CONFIG, shapes=decoder.shapes(CONFIG), row=decoder.mean, modules=NORMALIZED, is_fuzzed=True
    ),
    "llama-nemotron-rerank-1b-v2": Form(
        config=SCORING,
        shapes={**decoder.shapes(SCORING, prefix="model."), "score.weight": (1, 32)},
        row=score,
        output=OutputKind.LOGITS,
        engines=(TRANSFORMERS, OPENVINO, FUSED),
        refused=(("pooling", "last"), ("temperature", 0), ("temperature", "warm"), ("attention_window", 4)),
    ),
}
