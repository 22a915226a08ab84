"""Folders of tiny models with arbitrary weights, the same each time, in the form that checkpoints have for each use."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)
from transformers.utils import logging

from engine.model.coverage import Use
from tests.engine.folder_files import write
from tests.engine.model.detection.shapes import modules
from tests.parity.architectures import ARCHITECTURES, BGE_M3, HIDDEN_SIZE, STATIC, VOCAB_SIZE, Tiny

NUM_LABELS = {Use.RERANK: 1, Use.CLASSIFY: 3, Use.TOKEN_CLASSIFY: 5}
VECTOR_SIZE = 24  # of late interaction
QUERY_LENGTH = 16  # tokens to which its queries are filled up

# What loads a model for a use: the library's own way, for the reference and for making one.
CLASSES: Mapping[Use, Any] = {
    Use.EMBED: AutoModel,
    Use.RERANK: AutoModelForSequenceClassification,
    Use.CLASSIFY: AutoModelForSequenceClassification,
    Use.TOKEN_CLASSIFY: AutoModelForTokenClassification,
    Use.SPARSE: AutoModelForMaskedLM,
    Use.LATE_INTERACTION: AutoModel,
    Use.GENERATIVE_RERANK: AutoModelForCausalLM,
}
_POOLING = "1_Pooling/config.json"
_ST = "sentence_transformers.models"
_MARKERS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[Q]", "[D]")
_ANSWERS = ("no", "yes", "0", "1", "Yes")
_WORDS = {word: number for number, word in enumerate((*_MARKERS, *_ANSWERS))}


@dataclass(frozen=True, slots=True)
class Question:
    """What tells a generative reranker, and the tokens of its answer."""

    template: str  # as much of its chat template as it is known by
    folder: str  # or what it is called
    yes_id: int
    no_id: int | None


QUESTIONS = {
    "Qwen3": Question('Note that the answer can only be "yes" or "no".', "model", _WORDS["yes"], _WORDS["no"]),
    "Qwen2": Question("You are a search relevance expert who evaluates", "model", _WORDS["1"], _WORDS["0"]),
    "Gemma": Question("", "bge-reranker-v2-gemma", _WORDS["Yes"], None),
    "Gemma 2": Question("", "model", _WORDS["yes"], _WORDS["no"]),  # no cell: it is told by --template alone
}


def tiny_of(name: str) -> Tiny:
    """The tiny model behind a row of the table."""
    return ARCHITECTURES["XLM-RoBERTa" if name == BGE_M3 else name]


def num_types(name: str) -> int:
    """How many token types the model of a row tells apart."""
    if name == STATIC:
        return 0
    tiny = tiny_of(name)
    known: int = getattr(AutoConfig.for_model(tiny.model_type, **tiny.own.settings), "type_vocab_size", 0)
    return known


def save(name: str, use: Use, folder: Path) -> Path:
    """The model of one cell of the table, in this folder or one in it."""
    if name == STATIC:
        return _save_static(folder)
    if use is Use.GENERATIVE_RERANK:
        folder /= QUESTIONS[name].folder
    tiny = tiny_of(name)
    save_transformer(tiny, AutoModel if name == BGE_M3 else CLASSES[use], folder, num_labels=NUM_LABELS.get(use, 2))
    _save_tokenizer(folder)
    if name == BGE_M3:
        _save_linear(folder / "sparse_linear.safetensors", "weight", 1, bias="bias")
        _save_linear(folder / "colbert_linear.safetensors", "weight", HIDDEN_SIZE, bias="bias")
    if use is Use.EMBED or name == BGE_M3:
        save_pooling(folder, tiny.own.pooling)
    elif use is Use.SPARSE:
        _save_splade(folder)
    elif use is Use.LATE_INTERACTION:
        _save_colbert(folder)
    elif use is Use.GENERATIVE_RERANK:
        write(folder / "chat_template.json", {"chat_template": QUESTIONS[name].template})
    return folder


def save_transformer(tiny: Tiny, library_class: Any, folder: Path, *, num_labels: int) -> None:
    """As one of CLASSES saves it."""
    torch.manual_seed(0)
    labels = {"num_labels": num_labels} if library_class not in (AutoModel, AutoModelForCausalLM) else {}
    model: PreTrainedModel = library_class.from_config(
        AutoConfig.for_model(tiny.model_type, **tiny.own.settings, **labels)
    )
    with torch.no_grad():  # biases and the weights of norms too, which would be all alike
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    model.save_pretrained(folder)


def _save_tokenizer(folder: Path) -> None:
    others = {f"w{number}": number for number in range(len(_WORDS), VOCAB_SIZE)}
    words = Tokenizer(WordLevel(_WORDS | others, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    words.add_special_tokens(list(_MARKERS))
    words.save(str(folder / "tokenizer.json"))
    named = {f"{kind}_token": f"[{kind.upper()}]" for kind in ("pad", "unk", "cls", "sep", "mask")}
    write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **named})


def pooling_in(folder: Path) -> Any:
    """sentence-transformers' name of the folder's pooling, or several that are joined."""
    return json.loads((folder / _POOLING).read_text())["pooling_mode"]


def save_pooling(folder: Path, pooling: str | tuple[str, ...]) -> None:
    """The files of an embedding model beside its transformer."""
    _write_modules(folder, f"{_ST}.Transformer", f"{_ST}.Pooling")
    write(folder / _POOLING, {"embedding_dimension": HIDDEN_SIZE, "pooling_mode": pooling})


def _save_splade(folder: Path) -> None:
    _write_modules(
        folder,
        "sentence_transformers.sparse_encoder.models.MLMTransformer",
        "sentence_transformers.sparse_encoder.models.SpladePooling",
    )
    settings = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": VOCAB_SIZE}
    write(folder / "1_SpladePooling" / "config.json", settings)
    write(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})


def _save_colbert(folder: Path) -> None:
    """As PyLate does."""
    _write_modules(folder, f"{_ST}.Transformer", "pylate.models.Dense.Dense")
    settings = {"in_features": HIDDEN_SIZE, "out_features": VECTOR_SIZE, "bias": False}
    activation = {"activation_function": "torch.nn.modules.linear.Identity"}
    write(folder / "1_Dense" / "config.json", settings | activation)
    _save_linear(folder / "1_Dense" / "model.safetensors", "linear.weight", VECTOR_SIZE)
    words = {"model_type": "ColBERT", "query_prefix": "[Q]", "document_prefix": "[D]"}
    lengths = {
        "query_length": QUERY_LENGTH,
        "document_length": 48,
        "attend_to_expansion_tokens": False,
        "skiplist_words": [],
    }
    write(folder / "config_sentence_transformers.json", words | lengths)


def _save_static(folder: Path) -> Path:
    folder.mkdir()
    modules(folder, root=f"{_ST}.StaticEmbedding")
    torch.manual_seed(0)
    save_file({"embedding.weight": torch.randn(VOCAB_SIZE, HIDDEN_SIZE)}, folder / "model.safetensors")
    _save_tokenizer(folder)
    return folder


def _save_linear(file: Path, weight: str, size: int, *, bias: str = "") -> None:
    torch.manual_seed(1)
    linear = nn.Linear(HIDDEN_SIZE, size)
    tensors = {weight: linear.weight.detach()} | ({bias: linear.bias.detach()} if bias else {})
    file.parent.mkdir(exist_ok=True)
    save_file(tensors, file)


def _write_modules(folder: Path, first: str, second: str) -> None:
    modules(folder, root=first, **{f"1_{second.rpartition('.')[2]}": second})


logging.set_verbosity_error()  # type: ignore[no-untyped-call]
logging.disable_progress_bar()  # type: ignore[no-untyped-call]
torch.set_num_threads(1)  # two threads that wait for each other are slow on a busy machine
