"""The models that a snapshot asks about: tiny ones of every task, whose weights are the same each time."""

import string
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense as TokenDense
from sentence_transformers.base.modules import Normalize as TokenNormalize
from sentence_transformers.base.modules import Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import nn
from transformers import PreTrainedTokenizerFast

from tests.engine.folder_files import write
from tests.engine.model.detection import shapes
from tests.engine.sentence_models import save_chain
from tests.engine.tiny_models import (
    HIDDEN_SIZE,
    MASKED,
    SCORING_SEQUENCES,
    SCORING_TOKENS,
    VOCAB_SIZE,
    save,
    save_whole,
)

_OWN = "sentence_transformers.sparse_encoder.models"
# what `inspect` alone reads: their weights are a few zeros
SHAPES: dict[str, Callable[[Path], None]] = {
    one.__name__: one
    for one in (
        *(shapes.embedding, shapes.masked_lm, shapes.splade, shapes.inference_free_splade, shapes.cross_encoder),
        *(shapes.classifier, shapes.reward, shapes.token_classifier, shapes.static, shapes.model2vec),
        *(shapes.qwen3_reranker, shapes.mxbai_reranker, shapes.gemma_reranker, shapes.logit_score, shapes.bge_m3),
        *(shapes.pylate, shapes.multi_vector, shapes.stanford_colbert),
    )
}


def _letters() -> Tokenizer:
    """A token for each letter, so that texts differ by their tokens; nothing is added to a text."""
    known = {"[PAD]": 0, "[UNK]": 1, **{letter: number for number, letter in enumerate(string.printable, 2)}}
    tokenizer = Tokenizer(WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    return tokenizer


def _save_letters(folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_letters(), pad_token="[PAD]", unk_token="[UNK]")  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)


def embedding(folder: Path) -> None:
    save_chain(folder, ("max", "mean"), Dense(2 * HIDDEN_SIZE, 20), Normalize())
    _save_letters(folder)


def reranker(folder: Path) -> None:
    save_whole("bert", folder, SCORING_SEQUENCES, num_labels=1)
    _save_letters(folder)


def classifier(folder: Path) -> None:
    save_whole("bert", folder, SCORING_SEQUENCES, num_labels=3)
    _save_letters(folder)


def token_classifier(folder: Path) -> None:
    save_whole("bert", folder, SCORING_TOKENS, num_labels=5)
    _save_letters(folder)


def splade(folder: Path) -> None:
    save_whole("bert", folder, MASKED)
    _save_letters(folder)
    shapes.modules(folder, root=f"{_OWN}.MLMTransformer", p1=f"{_OWN}.SpladePooling")
    write(folder / shapes.CONFIG, {"model_type": "SparseEncoder"})
    write(folder / "p1" / "config.json", {"pooling_strategy": "max", "activation_function": "relu"})


def many_outputs(folder: Path) -> None:
    """As bge-m3: embeddings, weights of tokens and vectors of tokens."""
    save("xlm-roberta", folder)
    _save_letters(folder)
    shapes.modules(folder, root=f"{shapes.MODULE}Transformer", p1=f"{shapes.MODULE}Pooling")
    write(folder / "p1" / "config.json", {"embedding_dimension": HIDDEN_SIZE, "pooling_mode": "cls"})
    torch.manual_seed(3)
    for name, size in (("sparse", 1), ("colbert", HIDDEN_SIZE)):
        save_file(nn.Linear(HIDDEN_SIZE, size).state_dict(), folder / f"{name}_linear.safetensors")


def static(folder: Path) -> None:
    table = torch.rand((VOCAB_SIZE, 24), generator=torch.Generator().manual_seed(5)).numpy()
    modules: list[nn.Module] = [StaticEmbedding(_letters(), embedding_weights=table), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)


def late_interaction(folder: Path) -> None:
    bare = save("bert", folder.with_name(f"{folder.name} bare"))
    _save_letters(bare)
    torch.manual_seed(2)
    dense = TokenDense(
        HIDDEN_SIZE, 12, bias=False, activation_function=nn.Identity(), module_input_name="token_embeddings"
    )
    normalize = TokenNormalize(module_input_name="token_embeddings", module_output_name="token_embeddings")
    expansion = {"strategy": "fixed", "attend": False, "length": 12, "token": "\f"}  # which is in no text
    transformer = Transformer(str(bare), query_expansion=expansion)
    encoder = MultiVectorEncoder(modules=[transformer, dense, normalize, MultiVectorMask()], device="cpu")
    encoder.save_pretrained(str(folder), create_model_card=False)


# what can be computed
MODELS: dict[str, Callable[[Path], None]] = {
    one.__name__: one
    for one in (*(embedding, reranker, classifier, token_classifier, splade, many_outputs, static, late_interaction),)
}


def make(folder: Path) -> None:
    """All of them, a folder each: those of MODELS by their names, those of SHAPES behind `shape-`."""
    for name, write_model in MODELS.items():
        write_model(folder / name)
    for name, write_shape in SHAPES.items():
        write_shape(folder / f"shape-{name}")
