"""Tiny random models of many architectures in folders of their own, and what transformers itself makes of them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from engine.types import Batch, OutputKind

VOCAB_SIZE = 120
HIDDEN_SIZE = 32

SHARED: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    # large enough for attention to have preferences, so that a token from next door would show
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
GQA = {"num_key_value_heads": 2, "head_dim": 8}
_SLIDING = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

# name -> (model_type, what differs from SHARED). Names that aren't a model_type are variants.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "roberta": ("roberta", {"pad_token_id": 1}),
    "xlm-roberta": ("xlm-roberta", {"pad_token_id": 1, "type_vocab_size": 1}),
    "distilbert": ("distilbert", {"dim": HIDDEN_SIZE, "n_heads": 4, "n_layers": 3, "hidden_dim": 48}),
    "electra": ("electra", {"embedding_size": 16}),
    "albert": ("albert", {"embedding_size": 16}),
    "nomic_bert": ("nomic_bert", {}),
    "modernbert": (
        "modernbert",
        {"local_attention": 12, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3},
    ),
    "qwen2": ("qwen2", GQA),
    "qwen3": ("qwen3", GQA),
    "qwen3 with a window": ("qwen3", {**GQA, **_SLIDING, "use_sliding_window": True}),
    "mistral": ("mistral", {**GQA, "sliding_window": 6}),
    "llama": ("llama", GQA),
    "llama, bidirectional": ("llama", {**GQA, "is_causal": False}),
    "gemma2": ("gemma2", {**GQA, **_SLIDING, "query_pre_attn_scalar": 8}),
    "gemma3_text": ("gemma3_text", {**GQA, **_SLIDING, "query_pre_attn_scalar": 8}),
    "gemma3_text, bidirectional": (
        "gemma3_text",
        {**GQA, **_SLIDING, "query_pre_attn_scalar": 8, "use_bidirectional_attention": True},
    ),
    "gpt2": ("gpt2", {"n_embd": HIDDEN_SIZE, "n_head": 4, "n_layer": 3, "n_positions": 64}),
    "mpnet": ("mpnet", {"pad_token_id": 1}),
    "deberta-v2": ("deberta-v2", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "xlm": ("xlm", {"emb_dim": HIDDEN_SIZE, "n_heads": 4, "n_layers": 3}),
    "flaubert": ("flaubert", {"emb_dim": HIDDEN_SIZE, "n_heads": 4, "n_layers": 3}),
    "embedding_gemma2_text": (
        "embedding_gemma2_text",
        {
            **GQA,
            **_SLIDING,
            "global_head_dim": 16,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 16,
            "embedding_dim": 24,
        },
    ),
    # It has no norms. With larger weights its values go into the thousands and cancel each other.
    "mobilebert": (
        "mobilebert",
        {"embedding_size": HIDDEN_SIZE, "intra_bottleneck_size": 32, "initializer_range": 0.15},
    ),
    "gpt_oss": ("gpt_oss", {**GQA, "num_local_experts": 2, "num_experts_per_tok": 1}),
}
# The same for those that are tested with heads or in the fused engine alone.
MORE_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "camembert": ("camembert", {"pad_token_id": 1, "type_vocab_size": 1}),
    "data2vec-text": ("data2vec-text", {"pad_token_id": 1}),
    "ernie": ("ernie", {}),
    "electra, wide": ("electra", {"embedding_size": HIDDEN_SIZE}),
    "gte": ("gte", {"type_vocab_size": 1}),
    "gte without types": ("gte", {"type_vocab_size": 0}),
    "modernbert, mean": (
        "modernbert",
        {"local_attention": 12, "cls_token_id": 2, "sep_token_id": 3, "classifier_pooling": "mean"},
    ),
    "eurobert": ("eurobert", GQA),
    "eurobert, bos": ("eurobert", {**GQA, "classifier_pooling": "bos"}),
    "eurobert, mean": ("eurobert", {**GQA, "classifier_pooling": "mean"}),
    "gemma": ("gemma", GQA),
    "phi3": ("phi3", {"num_key_value_heads": 2}),
    "phi": ("phi", {"num_key_value_heads": 2}),
    "granite": ("granite", {**GQA, "logits_scaling": 3.0}),
    "jina_embeddings_v3": ("jina_embeddings_v3", {"pad_token_id": 1, "type_vocab_size": 1}),
}
PADDED = frozenset(("mpnet", "deberta-v2", "mobilebert", "gpt_oss", "xlm", "flaubert"))


SCORING_SEQUENCES = AutoModelForSequenceClassification
SCORING_TOKENS = AutoModelForTokenClassification
GENERATING = AutoModelForCausalLM
MASKED = AutoModelForMaskedLM
TAMED = 0.05
_ADDS = re.compile(r"(output\.dense|attention\.dense|ffn_output|attn\.o|o_proj|down_proj)\.weight$")


def save(family: str, folder: Path) -> Path:
    """A model of this family with arbitrary weights, the same each time."""
    return save_whole(family, folder, AutoModel)


def save_tame(family: str, folder: Path) -> Path:
    """The same, but what layers add to the residual stream is small, as in trained models: FP8 passes its gate."""
    return tame(save(family, folder))


def tame(folder: Path) -> Path:
    """Make what the layers of a model add small."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if _ADDS.search(name):
            tensor.mul_(TAMED)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def save_whole(family: str, folder: Path, purpose: Any, **others: Any) -> Path:
    """The same with the head of one of the library's automatic classes. others: more of its configuration."""
    torch.manual_seed(0)
    model: PreTrainedModel = purpose.from_config(config_of(family, **others))
    if purpose is not AutoModel:
        _randomize_biases(model)
    model.save_pretrained(folder)
    return folder


def config_of(family: str, **others: Any) -> PretrainedConfig:
    """The configuration of a family's tiny model. others: more of it."""
    model_type, differences = (FAMILIES | MORE_FAMILIES)[family]
    config: PretrainedConfig = AutoConfig.for_model(model_type, **(SHARED | differences | others))
    return config


@torch.no_grad()
def _randomize_biases(model: PreTrainedModel) -> None:
    """They begin as zeros, so that leaving one out would not show."""
    for name, tensor in model.named_parameters():
        if name.endswith("bias"):
            tensor.normal_(std=0.2)


def batch(
    sequences: Sequence[Sequence[int]], token_type_ids: Sequence[int] | None = None, **parts: Sequence[int]
) -> Batch:
    """A packed batch of these ids. parts: marks, adapters."""
    cu_seqlens = np.concatenate(([0], np.cumsum([len(sequence) for sequence in sequences]))).astype(np.int32)
    types = None if token_type_ids is None else np.array(token_type_ids, np.int32)
    own = {name: np.array(values, np.uint8 if name == "marks" else np.int32) for name, values in parts.items()}
    return Batch("m", OutputKind.POOLED, np.concatenate(sequences).astype(np.int32), cu_seqlens, types, **own)  # type: ignore[arg-type]


def arbitrary(seqlens: Sequence[int], *, first: int = 4) -> list[list[int]]:
    """Sequences of these lengths, their ids from `first` up."""
    numbers = np.random.default_rng(1)
    return [numbers.integers(first, VOCAB_SIZE, seqlen).tolist() for seqlen in seqlens]


class Reference:
    """transformers' own forward, one sequence at a time and without any of our code."""

    def __init__(self, folder: Path, **others: Any) -> None:
        self._model = AutoModel.from_pretrained(folder, dtype=torch.float32, **others)

    def token_rows(self, sequence: Sequence[int]) -> NDArray[np.float32]:
        """[S, D]"""
        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor([list(sequence)]), use_cache=False)
        rows: NDArray[np.float32] = output.last_hidden_state[0].numpy()
        return rows

    def pooled(self, sequences: Sequence[Sequence[int]], pooling: str) -> NDArray[np.float32]:
        """[B, D]"""
        token_rows = [self.token_rows(sequence) for sequence in sequences]
        if pooling == "mean":
            return np.stack([rows.mean(axis=0) for rows in token_rows])
        return np.stack([rows[0 if pooling == "cls" else -1] for rows in token_rows])


class WholeReference:
    """The same of a model with its head."""

    def __init__(self, folder: Path, purpose: Any) -> None:
        self._model = purpose.from_pretrained(folder, dtype=torch.float32)

    def scores(self, sequence: Sequence[int], token_type_ids: Sequence[int] | None = None) -> NDArray[np.float32]:
        """Raw scores [L], or of each token [S, L]."""
        types = {} if token_type_ids is None else {"token_type_ids": torch.tensor([list(token_type_ids)])}
        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor([list(sequence)]), **types)
        scores: NDArray[np.float32] = output.logits[0].numpy()
        return scores


logging.set_verbosity_error()  # type: ignore[no-untyped-call]
logging.disable_progress_bar()  # type: ignore[no-untyped-call]
torch.set_num_threads(1)  # two threads that wait for each other are slow on a busy machine
