"""The folders of repositories: as published without weights, and small with arbitrary weights in the same form."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from tests.parity.repositories import vocabularies
from tests.parity.repositories.facts import Head, Repository, Served

CLASSES: Mapping[Head, Any] = {
    Head.POOLED: AutoModel,
    Head.SCORES: AutoModelForSequenceClassification,
    Head.ANSWER: AutoModelForCausalLM,
    Head.SPLADE: AutoModelForMaskedLM,
    Head.COLBERT: AutoModel,
}

HIDDEN_SIZE, INNER_SIZE, NUM_HEADS, NUM_POSITIONS, WINDOW = 40, 52, 4, 64, 6
_WIDE = 1536  # numbers between two of LateOn's layers
_OFFSET = 2  # positions that RoBERTa and its kin lose

# What makes a model small, by the key of config.json. Everything else stays as published.
_SMALL: Mapping[str, Any] = {
    "vocab_size": vocabularies.SIZE,
    "hidden_size": HIDDEN_SIZE,
    "dim": HIDDEN_SIZE,
    "n_embd": HIDDEN_SIZE,
    "n_head": NUM_HEADS,
    "n_inner": 256,  # the code makes it a multiple of this
    "n_layer": 2,
    "n_positions": NUM_POSITIONS,
    "pooler_hidden_size": HIDDEN_SIZE,
    "intermediate_size": INNER_SIZE,
    "hidden_dim": INNER_SIZE,
    "num_hidden_layers": 2,
    "n_layers": 2,
    "num_attention_heads": NUM_HEADS,
    "n_heads": NUM_HEADS,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "embedding_size": 18,
    "local_attention": 2 * WINDOW,
    "sliding_window": WINDOW,
    "position_buckets": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    # large enough for attention to have preferences, so that a token from next door would show
    "initializer_range": 0.2,
    "initializer_cutoff_factor": 2.0,
    # EmbeddingGemma 2's
    "embedding_dim": 24,
    "hidden_size_per_layer_input": 12,
    "position_embedding_size": 32,
    "per_layer_config": {"1": {"head_dim": 16, "num_key_value_heads": 1}},
}
_PARTS = ("text_config", "vision_config", "audio_config")
_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


def write(repository: Repository, folder: Path) -> Path:
    """Its files as published, a small tokenizer, and names of weights without content."""
    for path, content in repository.files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
    if repository.table is None:
        vocabularies.save(repository.words, folder)
    else:
        _save_table(repository, *repository.table, folder)
    return folder


def _save_table(repository: Repository, name: str, inside: str, folder: Path) -> None:
    assert isinstance(repository.expected, Served)
    (folder / inside).mkdir(exist_ok=True)
    vocabularies.save(repository.words, folder / inside)
    torch.manual_seed(0)
    rows = torch.randn(vocabularies.SIZE, repository.expected.size)
    save_file({name: rows}, folder / inside / "model.safetensors")


def small(repository: Repository) -> Repository:
    """The same with small files."""
    return replace(repository, files=small_files(repository))


def small_files(repository: Repository) -> dict[str, Any]:
    """The same files in small sizes. Repositories of equal ones are computed by the same model."""
    config = {key: _small(key, value) for key, value in repository.config.items()}
    files = {**repository.files, "config.json": config}
    for path, content in files.items():
        if path.endswith("Pooling/config.json"):
            files[path] = {**content, "word_embedding_dimension": HIDDEN_SIZE}
        elif path.endswith("Dense/config.json"):
            widths = {key: content[key] for key in ("in_features", "out_features")}
            sizes = {key: INNER_SIZE if width == _WIDE else HIDDEN_SIZE for key, width in widths.items()}
            files[path] = {**content, **sizes}
        elif path.endswith("LogitScore/config.json"):
            ids = [vocabularies.special_ids(repository.words).get(answer) for answer in repository.answers or ()]
            files[path] = dict(zip(("true_token_id", "false_token_id"), ids, strict=True))
        elif path == "artifact.metadata":
            files[path] = {**content, "dim": HIDDEN_SIZE}
        elif path in ("sentence_bert_config.json", "tokenizer_config.json"):
            files[path] = {key: _length(value) if "max" in key else value for key, value in content.items()}
    return files


def _small(key: str, value: Any) -> Any:
    if value is None:
        return None
    if key in _PARTS:
        return {inside: _small(inside, each) for inside, each in value.items()}
    if key in _IDS and value >= vocabularies.SIZE:
        return _IDS.index(key)
    if key == "max_position_embeddings":
        return NUM_POSITIONS + (_OFFSET if value % 512 == _OFFSET else 0)
    if key == "num_key_value_heads" and value == 1:
        return 1
    if key == "layer_types" and len(set(value)) == 1:
        return value[:2]
    return _SMALL.get(key, value)


def _length(value: int) -> int:
    return min(value, NUM_POSITIONS)


def save_small(repository: Repository, folder: Path) -> Path:
    """A small model with arbitrary weights, the same each time, in the repository's form."""
    write(small(repository), folder)
    if isinstance(repository.expected, Served) and repository.table is None:
        _save_weights(small(repository), repository.expected, folder)
    return folder


def _save_weights(own: Repository, served: Served, folder: Path) -> None:
    torch.manual_seed(0)
    model = CLASSES[served.head].from_config(library_config(own))
    with torch.no_grad():  # biases and the weights of norms too, which would be all alike
        for tensor in model.state_dict().values():
            if tensor.dim() == 1 and tensor.is_floating_point():
                tensor.add_(torch.randn(tensor.shape), alpha=0.2)
    dtype = getattr(torch, own.config.get("torch_dtype", "float32"))
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in model.state_dict().items()}
    tied = model._tied_weights_keys or () if own.config.get("tie_word_embeddings", True) else ()
    tensors = {name: tensor for name, tensor in tensors.items() if name not in tied}
    if "artifact.metadata" in own.files:  # Stanford's class has the layer after "bert"
        tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()}
        tensors["linear.weight"] = torch.randn(HIDDEN_SIZE, HIDDEN_SIZE)
    for name in own.buffers:
        tensors[name] = torch.arange(own.config["max_position_embeddings"])[None]
    save_file(tensors, folder / "model.safetensors")
    for path, content in own.files.items():
        if path.endswith("Dense/config.json"):
            _save_dense(folder / path, content)


def library_config(own: Repository) -> Any:
    """The small model's configuration as transformers' class has it."""
    names = ("model_type", "architectures", "auto_map", "transformers_version")
    settings = own.library or {key: value for key, value in own.config.items() if key not in names}
    return AutoConfig.for_model(**{"model_type": own.config["model_type"], **settings})


def _save_dense(config: Path, content: Mapping[str, Any]) -> None:
    torch.manual_seed(1)
    sizes = content["in_features"], content["out_features"]
    linear = torch.nn.Linear(*sizes, bias=content["bias"])
    tensors = {f"linear.{name}": tensor.detach() for name, tensor in linear.named_parameters()}
    if content.get("use_residual") and sizes[0] != sizes[1]:
        tensors["residual.weight"] = torch.randn(sizes[::-1]) / sizes[0] ** 0.5
    save_file(tensors, config.with_name("model.safetensors"))
