"""Files in the forms that sentence-transformers and transformers save, from the few facts that differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.model.tasks import Activation, Task
from tests.parity.repositories.facts import Head, Ids, Refused, Repository, Served
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

Files = dict[str, Any]

_POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
_CLASSES = {
    Words.UNCASED: "BertTokenizer",
    Words.CASED: "BertTokenizer",
    Words.KOREAN: "BertTokenizer",
    Words.MPNET: "MPNetTokenizer",
    Words.UNIGRAM: "XLMRobertaTokenizer",
    Words.ROBERTA: "RobertaTokenizer",
    Words.MODERN: "PreTrainedTokenizerFast",
    Words.QWEN3: "Qwen2Tokenizer",
    Words.QWEN: "Qwen2Tokenizer",
    Words.LLAMA: "LlamaTokenizer",
    Words.GEMMA: "GemmaTokenizer",
    Words.GEMMA_FIRST: "GemmaTokenizer",
    Words.DEBERTA: "DebertaV2Tokenizer",
    Words.T5: "T5Tokenizer",
    Words.LLAMA3: "PreTrainedTokenizerFast",
    Words.JINA_COLBERT: "XLMRobertaTokenizer",
    Words.STATIC: "BertTokenizer",
}


def tokenizer_files(words: Words, model_max_length: int, flags: Mapping[str, Any]) -> Files:
    """tokenizer_config.json. flags: of special tokens, and of code."""
    lower = (
        {"do_lower_case": words not in (Words.CASED, Words.KOREAN)}
        if _CLASSES[words] in ("BertTokenizer", "MPNetTokenizer")
        else {}
    )
    return {
        "tokenizer_config.json": {
            "tokenizer_class": _CLASSES[words],
            "model_max_length": model_max_length,
            **lower,
            **flags,
        }
    }


def sentence_files(
    size: int,
    pooling: str,
    *,
    is_normalized: bool,
    length: int | None,
    do_lower_case: bool = False,
    prompts: Mapping[str, str] | None = None,
    dense: Sequence[tuple[int, bool, str]] = (),
    first_module: str = "",
) -> Files:
    """modules.json and the files that it names. length: max_seq_length. dense: size, bias and activation of each."""
    kinds = ["Transformer", "Pooling", *("Dense" for _ in dense), *(["Normalize"] if is_normalized else [])]
    modules = [
        {"idx": place, "name": str(place), "path": f"{place}_{kind}" if place else "", "type": _PACKAGE + kind}
        for place, kind in enumerate(kinds)
    ]
    if first_module:
        modules[0]["type"] = first_module
    flags = {flag: mode == pooling for mode, flag in _POOLINGS.items()}
    files: Files = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": size, **flags},
        "config_sentence_transformers.json": {"__version__": {}, **({"prompts": dict(prompts)} if prompts else {})},
    }
    if length is not None:
        files["sentence_bert_config.json"] = {"max_seq_length": length, "do_lower_case": do_lower_case}
    for place, (out_features, has_bias, activation) in enumerate(dense, start=2):
        files[f"{place}_Dense/config.json"] = {
            "in_features": size,
            "out_features": out_features,
            "bias": has_bias,
            "activation_function": activation,
        }
        size = out_features
    return files


_PACKAGE = "sentence_transformers.models."


def embedding(
    name: str,
    family: Mapping[str, Any],
    words: Words,
    pooling: str,
    *,
    length: int,
    is_normalized: bool = True,
    rows: tuple[Source, ...],
    ids: Ids | None = None,
    prompts: Mapping[str, str] | None = None,
    card: tuple[str, ...] = (),
    do_lower_case: bool = False,
    dense: Sequence[tuple[int, bool, str]] = (),
    first_module: str = "",
    model_max_length: int | None = None,
    is_pickled: bool = False,
    buffers: tuple[str, ...] = (),
    refused: Refused | None = None,
    flags: Mapping[str, Any] | None = None,
    library: Mapping[str, Any] | None = None,
    held_by: str = "",
    doubt: str = "",
    **config: Any,
) -> Repository:
    """A repository of sentence-transformers. config: what differs from the family's."""
    said = {**family, **config}
    size = next(said[key] for key in ("hidden_size", "dim", "n_embd", "d_model") if key in said)
    served = Served(pooling=pooling, is_normalized=is_normalized, size=dense[-1][0] if dense else size, length=length)
    return plain(
        name,
        family,
        words,
        refused or served,
        rows=rows,
        ids=ids,
        model_max_length=model_max_length or length,
        others=sentence_files(
            size,
            pooling,
            is_normalized=is_normalized,
            length=length,
            do_lower_case=do_lower_case,
            prompts=prompts,
            dense=dense,
            first_module=first_module,
        ),
        card=card,
        is_pickled=is_pickled,
        buffers=buffers,
        flags=flags,
        library=library,
        held_by=held_by,
        doubt=doubt,
        **config,
    )


def plain(
    name: str,
    family: Mapping[str, Any],
    words: Words,
    expected: Served | Refused,
    *,
    rows: tuple[Source, ...],
    ids: Ids | None = None,
    model_max_length: int,
    others: Mapping[str, Any] | None = None,
    card: tuple[str, ...] = (),
    is_pickled: bool = False,
    buffers: tuple[str, ...] = (),
    flags: Mapping[str, Any] | None = None,
    library: Mapping[str, Any] | None = None,
    held_by: str = "",
    answers: tuple[str, str] | None = None,
    doubt: str = "",
    **config: Any,
) -> Repository:
    """A repository of transformers: without modules.json unless `others` has it."""
    files = {
        "config.json": {**family, **config},
        **tokenizer_files(words, model_max_length, flags or {}),
        **(others or {}),
    }
    return Repository(
        name=name,
        files=files,
        words=words,
        expected=expected,
        rows=rows,
        ids=ids,
        is_pickled=is_pickled,
        buffers=buffers,
        card=card,
        library=library,
        held_by=held_by,
        answers=answers,
        doubt=doubt,
    )


def cross_encoder(
    name: str,
    family: Mapping[str, Any],
    words: Words,
    *,
    length: int,
    rows: tuple[Source, ...],
    ids: Ids | None = None,
    activation: Activation = Activation.SIGMOID,
    model_max_length: int | None = None,
    refused: Refused | None = None,
    is_pickled: bool = False,
    buffers: tuple[str, ...] = (),
    held_by: str = "",
    **config: Any,
) -> Repository:
    """…ForSequenceClassification with one label."""
    served = Served(task=Task.RERANK, head=Head.SCORES, size=1, length=length, activation=activation)
    labels: Files = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return plain(
        name,
        family,
        words,
        refused or served,
        rows=rows,
        ids=ids,
        model_max_length=model_max_length or length,
        is_pickled=is_pickled,
        buffers=buffers,
        held_by=held_by,
        **labels,
        **config,
    )
