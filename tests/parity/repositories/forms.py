"""Files in the forms that sentence-transformers and transformers save, from the few facts that differ."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from engine.model.tasks import Activation, Task
from tests.parity.repositories.facts import Head, Refused, Repository, Served
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

Files = dict[str, Any]

IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
_PACKAGE = "sentence_transformers.models."
_FACTS = {each.name for each in fields(Repository)}
_POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
_CLASSES = {
    words: f"{name}Tokenizer"
    for name, kinds in {
        "Bert": (Words.UNCASED, Words.CASED, Words.KOREAN, Words.STATIC),
        "MPNet": (Words.MPNET,),
        "XLMRoberta": (Words.UNIGRAM, Words.JINA_COLBERT),
        "Roberta": (Words.ROBERTA,),
        "Qwen2": (Words.QWEN3, Words.QWEN),
        "Llama": (Words.LLAMA,),
        "Gemma": (Words.GEMMA, Words.GEMMA_FIRST),
        "DebertaV2": (Words.DEBERTA,),
        "T5": (Words.T5,),
    }.items()
    for words in kinds
}


def tokenizer_config(words: Words, model_max_length: int, flags: Mapping[str, Any]) -> Files:
    """flags: of special tokens, and of code."""
    name = _CLASSES.get(words, "PreTrainedTokenizerFast")
    is_lower = {"do_lower_case": words not in (Words.CASED, Words.KOREAN)} if name[:4] in ("Bert", "MPNe") else {}
    return {"tokenizer_class": name, "model_max_length": model_max_length, **is_lower, **flags}


def embedding(
    name: str,
    family: Mapping[str, Any],
    pooling: str,
    *,
    length: int,
    is_normalized: bool = True,
    do_lower_case: bool = False,
    prompts: Mapping[str, str] | None = None,
    dense: Sequence[tuple[int, bool, str]] = (),
    first_module: str = "",
    model_max_length: int | None = None,
    refused: Refused | None = None,
    gives: int | None = None,
    **more: Any,
) -> Repository:
    """A repository of sentence-transformers: modules.json and the files that it names.

    dense: size, bias and activation of each. gives: the size of a row, if the model's own code makes another of it.
    more: see plain.
    """
    said = {**family.get("text_config", {}), **family, **more}
    size = next(said[key] for key in ("hidden_size", "dim", "n_embd", "d_model") if key in said)
    shown = gives or (dense[-1][0] if dense else size)
    served = Served(pooling=pooling, is_normalized=is_normalized, size=shown, length=length)
    kinds = ["Transformer", "Pooling", *("Dense" for _ in dense), *(["Normalize"] if is_normalized else [])]
    modules = [
        {"idx": place, "name": str(place), "path": f"{place}_{kind}" if place else "", "type": _PACKAGE + kind}
        for place, kind in enumerate(kinds)
    ]
    modules[0]["type"] = first_module or modules[0]["type"]
    flags = {flag: mode == pooling for mode, flag in _POOLINGS.items()}
    files: Files = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": size, **flags},
        "config_sentence_transformers.json": {"__version__": {}, **({"prompts": dict(prompts)} if prompts else {})},
        "sentence_bert_config.json": {"max_seq_length": length, "do_lower_case": do_lower_case},
    }
    for place, (rows, has_bias, activation) in enumerate(dense, start=2):
        sizes = {"in_features": size, "out_features": rows, "bias": has_bias}
        files[f"{place}_Dense/config.json"] = {**sizes, "activation_function": activation}
        size = rows
    return plain(name, family, refused or served, model_max_length=model_max_length or length, others=files, **more)


def plain(
    name: str,
    family: Mapping[str, Any],
    expected: Served | Refused,
    *,
    words: Words,
    rows: tuple[Source, ...],
    model_max_length: int,
    others: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
    **more: Any,
) -> Repository:
    """A repository of transformers: without modules.json unless `others` has it.

    more: further fields of Repository; the rest is what differs in config.json from the family's.
    """
    facts = {key: more.pop(key) for key in _FACTS & more.keys()}
    tokenizer = tokenizer_config(words, model_max_length, flags or {})
    files = {"config.json": {**family, **more}, "tokenizer_config.json": tokenizer, **(others or {})}
    return Repository(name=name, files=files, words=words, expected=expected, rows=rows, **facts)


def cross_encoder(
    name: str,
    family: Mapping[str, Any],
    *,
    length: int,
    activation: Activation = Activation.SIGMOID,
    **more: Any,
) -> Repository:
    """…ForSequenceClassification with one label. more: see plain."""
    served = Served(task=Task.RERANK, head=Head.SCORES, size=1, length=length, activation=activation)
    labels: Files = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return plain(name, family, served, model_max_length=length, **labels, **more)
