"""The uses of each architecture that are served, by which engine and how: the table in docs/models.md, as data.

tests/parity holds each cell of it against the model's own reference.
"""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.model.model_folder import ModelFolder


class Use(enum.StrEnum):
    """A use of a model: a column."""

    EMBED = "embed"
    RERANK = "rerank"  # …ForSequenceClassification with one label
    CLASSIFY = "classify"
    TOKEN_CLASSIFY = "token-classify"
    SPARSE = "sparse"  # SPLADE; bge-m3's own
    LATE_INTERACTION = "late-interaction"
    GENERATIVE_RERANK = "rerank, generative"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One row of the table: which engines serve this architecture, and how."""

    name: str
    model_type: str
    uses: tuple[Use, ...]
    transformers: str = "packed"  # or "padded"; "" = another engine's
    not_openvino: frozenset[Use] = frozenset()  # what that engine refuses
    is_fused: bool = False  # on a GPU, for all its uses

    def engines(self, use: Use) -> tuple[str, ...]:
        """The engines that give it; none where the architecture is not for it."""
        if use not in self.uses:
            return ()
        if not self.transformers:
            return ("static",)
        fused = ("fused",) if self.is_fused else ()
        return (self.transformers, *(() if use in self.not_openvino else ("openvino",)), *fused)


_SCORES = (Use.EMBED, Use.RERANK, Use.CLASSIFY)
_ENCODER = (*_SCORES, Use.TOKEN_CLASSIFY, Use.SPARSE, Use.LATE_INTERACTION)
_DECODER = (*_SCORES, Use.TOKEN_CLASSIFY)
_BGE_M3 = (Use.EMBED, Use.SPARSE, Use.LATE_INTERACTION)  # all from one forward
_GENERATIVE = (*_DECODER, Use.GENERATIVE_RERANK)

ARCHITECTURES = (
    Architecture(name="BERT", model_type="bert", uses=_ENCODER, is_fused=True),
    Architecture(name="RoBERTa", model_type="roberta", uses=_ENCODER, is_fused=True),
    Architecture(name="XLM-RoBERTa", model_type="xlm-roberta", uses=_ENCODER, is_fused=True),
    Architecture(name="XLM-RoBERTa with bge-m3's heads", model_type="xlm-roberta", uses=_BGE_M3, is_fused=True),
    Architecture(name="CamemBERT", model_type="camembert", uses=_ENCODER, is_fused=True),
    Architecture(name="Data2VecText", model_type="data2vec-text", uses=_ENCODER, is_fused=True),
    Architecture(name="ERNIE", model_type="ernie", uses=_ENCODER, is_fused=True),
    Architecture(name="DistilBERT", model_type="distilbert", uses=_ENCODER, is_fused=True),
    Architecture(name="ELECTRA", model_type="electra", uses=_ENCODER, is_fused=True),
    Architecture(name="ALBERT", model_type="albert", uses=_ENCODER, is_fused=True),
    Architecture(name="MPNet", model_type="mpnet", uses=_ENCODER, transformers="padded", is_fused=True),
    Architecture(name="DeBERTa-v2", model_type="deberta-v2", uses=_ENCODER, transformers="padded"),
    Architecture(name="NomicBERT", model_type="nomic_bert", uses=_ENCODER, is_fused=True),
    Architecture(name="GTE", model_type="gte", uses=_ENCODER, is_fused=True),
    Architecture(name="Jina v3", model_type="jina_embeddings_v3", uses=_ENCODER, is_fused=True),
    Architecture(name="ModernBERT", model_type="modernbert", uses=_ENCODER, is_fused=True),
    Architecture(name="EuroBERT", model_type="eurobert", uses=_ENCODER, is_fused=True),
    Architecture(name="UltraBERT", model_type="ultrabert", uses=_ENCODER),
    Architecture(name="Qwen2", model_type="qwen2", uses=_GENERATIVE, is_fused=True),
    Architecture(name="Qwen2, bidirectional", model_type="qwen2", uses=_DECODER, is_fused=True),
    Architecture(name="Qwen3", model_type="qwen3", uses=_GENERATIVE, is_fused=True),
    Architecture(name="Mistral", model_type="mistral", uses=_DECODER, is_fused=True),
    Architecture(name="Ministral", model_type="ministral", uses=_DECODER, is_fused=True),
    Architecture(name="Ministral 3", model_type="ministral3", uses=_DECODER, is_fused=True),
    Architecture(name="Ministral 3, bidirectional", model_type="ministral3", uses=_DECODER, is_fused=True),
    Architecture(name="Llama", model_type="llama", uses=_DECODER, is_fused=True),
    Architecture(name="Llama, bidirectional", model_type="llama", uses=_DECODER, is_fused=True),
    Architecture(name="Gemma", model_type="gemma", uses=_GENERATIVE, is_fused=True),
    Architecture(name="Gemma 2", model_type="gemma2", uses=_DECODER, is_fused=True),
    Architecture(name="Gemma 3", model_type="gemma3_text", uses=_SCORES, is_fused=True),
    Architecture(name="EmbeddingGemma", model_type="gemma3_text", uses=(Use.EMBED,), is_fused=True),
    Architecture(name="EmbeddingGemma 2", model_type="embedding_gemma2_text", uses=(Use.EMBED,)),
    Architecture(name="Phi3", model_type="phi3", uses=_DECODER, is_fused=True),
    Architecture(name="SmolLM3", model_type="smollm3", uses=_DECODER, is_fused=True),
    Architecture(name="LFM2", model_type="lfm2", uses=(Use.EMBED, Use.LATE_INTERACTION), transformers="padded"),
    Architecture(name="GPT-2", model_type="gpt2", uses=_DECODER),
    Architecture(
        name="GPT-OSS", model_type="gpt_oss", uses=_DECODER, transformers="padded", not_openvino=frozenset(_DECODER)
    ),
    Architecture(name="Static embeddings (model2vec)", model_type="", uses=(Use.EMBED,), transformers=""),
)

# Architectures without a row that the fused engine knows, too: rerankers whose authors have code of their own, and one
# that is a row's beside images.
FUSED_BESIDES = frozenset(("llama_bidirec", "mistral3", "xlm-roberta-flash"))

_TEXT_OF = {"embedding_gemma2": "embedding_gemma2_text"}  # models of more than texts -> the part that is served


def use_of(folder: "ModelFolder") -> Use:
    """The use that the model is for."""
    return Use.GENERATIVE_RERANK if folder.template else Use(folder.task)


def rows_of(folder: "ModelFolder") -> list[Architecture]:
    """The rows of a model's architecture, which may have several."""
    model_type = _TEXT_OF.get(folder.architecture, folder.architecture)
    return [row for row in ARCHITECTURES if row.model_type == model_type]
