"""Finds out which chain of modules a folder's modules.json is, among those of sentence-transformers 6 and PyLate.

Looks at the kinds and order of modules only, not at their options.
"""

import enum
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.model.detection.router_modules import refusal, routed
from engine.model.json_files import Json, object_in, read_optional
from engine.model.modules import Module, read_entries
from engine.types import ModelError

_AFTER_POOLING = frozenset(("Dense", "LayerNorm", "Normalize", "Dropout"))
_AFTER_TOKENS = frozenset(("Dense", "MultiVectorMask", "Normalize", "Dropout"))
_TRANSFORMERS = ("Transformer", "MLMTransformer")
_CONFIG, _MODEL_TYPE, _USUAL = "config_sentence_transformers.json", "model_type", "SentenceTransformer"
_LATE_MODELS = ("ColBERT", "MultiVectorEncoder")
_SUPPORTED = (
    "supported are a Transformer with a Pooling and then any of Dense, LayerNorm, Normalize, Dropout; with a "
    "SpladePooling, with a LogitScore, or alone in a CrossEncoder; a StaticEmbedding; and ColBERT's"
)


class Chain(enum.StrEnum):
    """A chain of modules, by its purpose."""

    EMBED = "embed"  # Transformer, Pooling, …
    STATIC = "static"  # StaticEmbedding, …
    SPARSE = "sparse"  # Transformer or MLMTransformer, SpladePooling
    LATE = "late"  # Transformer, Dense of each token, …
    SCORES = "scores"  # Transformer alone: …ForSequenceClassification
    ANSWER = "answer"  # Transformer, LogitScore: a generative reranker


@dataclass(frozen=True, slots=True)
class Chained:
    """The chain in modules.json."""

    chain: Chain | None = None  # None = there is no modules.json
    modules: tuple[Module, ...] = ()  # of a Router, those for documents
    query_table: PurePosixPath | None = None  # folder of the query table's weights; None = there is no table

    @property
    def transformer_folder(self) -> PurePosixPath:
        """Relative to the model's folder; mostly that folder. Routers have others, old versions `0_Transformer`."""
        is_transformer = bool(self.modules) and self.modules[0].kind in _TRANSFORMERS
        return self.modules[0].path if is_transformer else PurePosixPath()


def read_chain(folder: Path) -> Chained:
    """Raises ModelError if the modules are not a supported chain."""
    if not (folder / "modules.json").is_file():
        return Chained()
    entries = read_entries(folder)
    found = routed(folder, entries)
    modules, kinds = found.modules, [module.kind for module in found.modules]
    kind = model_kind(folder)
    chain = _chain(kinds, kind)
    if found.has_routes:
        served = (Chain.SPARSE,) if found.query_table else (Chain.EMBED, Chain.SPARSE, Chain.STATIC)
        if chain not in served:
            raise refusal(folder, entries)
        return Chained(chain, modules, found.query_table)
    if chain is None:
        of_kind = "" if kind == _USUAL else f" of a {kind} ({_MODEL_TYPE} in {_CONFIG})"
        raise ModelError(f"modules.json lists {', '.join(kinds) or 'nothing'}{of_kind}; {_SUPPORTED}")
    return Chained(chain, modules)


def model_kind(folder: Path) -> str:
    """The class of sentence-transformers that the folder is for. Raises ModelError for an unknown one."""
    kind = read_optional(folder / _CONFIG).get(_MODEL_TYPE, _USUAL)
    if kind not in (_USUAL, "SparseEncoder", "CrossEncoder", *_LATE_MODELS):
        raise ModelError(f"{_MODEL_TYPE} in {_CONFIG} is {str(kind)[:60]!r}, which is not supported")
    return str(kind)


def _chain(kinds: list[str], model: str) -> Chain | None:
    first, rest = kinds[:1], kinds[1:]
    if first == ["StaticEmbedding"] and _AFTER_POOLING.issuperset(rest):
        return Chain.STATIC
    if not first or first[0] not in _TRANSFORMERS:
        return None
    if rest[:1] == ["Pooling"] and _AFTER_POOLING.issuperset(rest[1:]) and first == ["Transformer"]:
        return Chain.EMBED if model == _USUAL else None
    if rest == ["SpladePooling"]:
        return Chain.SPARSE
    if model in _LATE_MODELS and _AFTER_TOKENS.issuperset(rest):
        return Chain.LATE
    if model == "CrossEncoder":
        return {(): Chain.SCORES, ("LogitScore",): Chain.ANSWER}.get(tuple(rest))
    return None


def transformer_refusal(chain: Chain | None, config: Json, *, is_masked_lm: bool) -> str:
    """Why the Transformer module does not fit the chain; "" if it does. config: the module's options."""
    task, output = {
        Chain.SPARSE: ("fill-mask", "logits"),
        Chain.SCORES: ("sequence-classification", "logits"),
        Chain.ANSWER: ("text-generation", "logits"),
    }.get(chain or Chain.EMBED, ("feature-extraction", "last_hidden_state"))
    default = "fill-mask" if is_masked_lm else task if chain is Chain.SCORES else "feature-extraction"
    if config.get("transformer_task", default) != task:
        return f"'transformer_task': the Transformer module is not for {task}, which the modules after it need"
    modalities = object_in(config, "modality_config")
    if not modalities or (chain is Chain.ANSWER and "text" not in modalities):
        return ""
    if modalities.get("text") != {"method": "forward", "method_output_name": output}:
        return "'modality_config': the Transformer module does not turn plain text into what the modules after it need"
    return ""
