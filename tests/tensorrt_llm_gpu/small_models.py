"""Random models of sizes that the library has kernels for, in folders: heads of 64, all sizes multiples of 128."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.utils import logging

from tests.engine.folder_files import change, write
from tests.engine.model.detection.shapes import MODULE, QWEN3_CHAT, modules

HIDDEN_SIZE = 256
YES, NO = 11, 7
NUM_LABELS = 3
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ENCODERS = ("roberta", "xlm-roberta")
WINDOW = 64  # tokens
_SIZES: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    # large enough for attention to have preferences, so that a token from next door would show
    "initializer_range": 0.1,
    "pad_token_id": None,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 64, "sliding_window": None}
_OF_ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    **{encoder: {"pad_token_id": 1, "max_position_embeddings": 514} for encoder in ENCODERS},
}
_ADDED = ("o_proj.weight", "down_proj.weight")  # products whose rows are added to the stream
# How the two kinds of models are scaled, so that the last row has much of the embedding in it, as in trained ones. With
# the first, bf16 costs a cosine of up to 4e-4, and a wrong mask 4e-2 and more; with the second FP8 costs 1e-3.
_ADDED_BY_LAYERS, _ADDED_LITTLE, _EMBEDDING = 0.3, 0.1, 10.0
_POOLINGS = {"last": "lasttoken", "mean": "mean_tokens", "cls": "cls_token"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is written to a folder."""

    model_type: str
    kind: str = "embed"  # "scores", "answer" or "reward"
    pooling: str = "last"
    is_tame: bool = False  # what layers add to the stream is small
    config: dict[str, Any] = field(default_factory=dict)


MODELS = {
    **{family: Model(model_type=family) for family in FAMILIES},
    **{
        f"{family}, all see all": Model(model_type=family, pooling="mean", config={"is_causal": False})
        for family in FAMILIES
    },
    **{f"{family}, tame": Model(model_type=family, is_tame=True) for family in FAMILIES},
    **{f"{family}, scores": Model(model_type=family, kind="scores") for family in FAMILIES},
    "qwen3, answer": Model(model_type="qwen3", kind="answer", config={"tie_word_embeddings": True}),
    "llama, answer": Model(model_type="llama", kind="answer", config={"tie_word_embeddings": False}),
    "mistral, window": Model(model_type="mistral", config={"sliding_window": WINDOW}),
    **{encoder: Model(model_type=encoder, pooling="mean") for encoder in ENCODERS},
    **{f"{encoder}, scores": Model(model_type=encoder, kind="scores") for encoder in ENCODERS},
    "bert, scores": Model(model_type="bert", kind="scores"),
    "qwen2, reward": Model(model_type="qwen2", kind="reward"),
}


def save(name: str, folder: Path) -> Path:
    """A folder of MODELS, the same each time; nothing is done where it is there."""
    if (folder / "config.json").is_file():
        return folder
    model = MODELS[name]
    torch.manual_seed(0)
    sizes = _SIZES | _OF_ENCODERS.get(model.model_type, _GROUPED)
    config = AutoConfig.for_model(model.model_type, **(sizes | model.config))
    if model.kind == "scores":
        config.num_labels = NUM_LABELS
    made = _purpose(model.kind).from_config(config, dtype=torch.float32)
    _randomize(made, is_tame=model.is_tame)
    made.save_pretrained(folder)
    change(folder / "config.json", **model.config)  # a class may leave out what it does not know
    if model.kind == "embed":
        _save_chain(folder, model.pooling)
    if model.kind == "answer":
        _save_answer(folder)
    if model.kind == "reward":
        _save_reward(folder)
    return folder


def _purpose(kind: str) -> Any:
    return {"scores": AutoModelForSequenceClassification, "answer": AutoModelForCausalLM}.get(kind, AutoModel)


@torch.no_grad()
def _randomize(model: nn.Module, *, is_tame: bool) -> None:
    """Norms and biases begin as ones and zeros, so that one that is left out would not show."""
    for name, tensor in model.named_parameters():
        if name.endswith(_ADDED):
            tensor.mul_(_ADDED_LITTLE if is_tame else _ADDED_BY_LAYERS)
        elif name.endswith("embed_tokens.weight"):
            tensor.mul_(_EMBEDDING)
        elif name.endswith(("norm.weight", "LayerNorm.weight")):
            tensor.uniform_(0.75, 1.25)
        elif name.endswith("bias"):
            tensor.normal_(std=0.1)


def _save_chain(folder: Path, pooling: str) -> None:
    """As sentence-transformers writes it."""
    kinds = {"root": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules(folder, **{path: MODULE + kind for path, kind in kinds.items()})
    modes = {f"pooling_mode_{name}": kind == pooling for kind, name in _POOLINGS.items()}
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": HIDDEN_SIZE, **modes})


def _save_answer(folder: Path) -> None:
    """A generative reranker, as its CrossEncoder writes it."""
    kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    modules(folder, root=f"{MODULE}Transformer", s1=kind)
    write(folder / "s1" / "config.json", {"true_token_id": YES, "false_token_id": NO})
    write(folder / "sentence_bert_config.json", {"transformer_task": "text-generation"})
    write(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    (folder / "chat_template.jinja").write_text(QWEN3_CHAT)


@torch.no_grad()
def _save_reward(folder: Path) -> None:
    """The two layers that Qwen's reward models have on top, and that they bring code for them."""
    tensors = {f"model.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    for name, size in (("score.0", HIDDEN_SIZE), ("score.2", 1)):
        tensors[f"{name}.weight"] = torch.randn(size, HIDDEN_SIZE) / 16
        tensors[f"{name}.bias"] = torch.randn(size) / 16
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    name = "Qwen2ForRewardModel"
    change(folder / "config.json", architectures=[name], auto_map={"AutoModel": f"modeling_qwen2_rm.{name}"})


logging.set_verbosity_error()  # type: ignore[no-untyped-call]
logging.disable_progress_bar()  # type: ignore[no-untyped-call]
