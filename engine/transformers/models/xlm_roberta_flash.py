"""Jina's XLM-RoBERTa with absolute positions, as jina-reranker-v2-base-multilingual has it: transformers' layers, and
weights of other names. Read: jinaai/xlm-roberta-flash-implementation, modeling_xlm_roberta.py.
"""

from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification, XLMRobertaModel
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Chunk, WeightConverter, WeightRenaming


class XLMRobertaFlashConfig(XLMRobertaConfig):
    """transformers' own keys."""

    model_type = "xlm-roberta-flash"


class XLMRobertaFlashModel(XLMRobertaModel):
    """The rows of tokens."""

    config_class = XLMRobertaFlashConfig


class XLMRobertaFlashForSequenceClassification(XLMRobertaForSequenceClassification):
    """Scores of the first row."""

    config_class = XLMRobertaFlashConfig


_PARTS = [f"attention.self.{name}" for name in ("query", "key", "value")]
register_checkpoint_conversion_mapping(
    XLMRobertaFlashConfig.model_type,
    [
        WeightRenaming(r"emb_ln", r"embeddings.LayerNorm"),
        WeightRenaming(r"encoder.layers", r"encoder.layer"),
        WeightRenaming(r"mixer.out_proj", r"attention.output.dense"),
        WeightRenaming(r"norm1", r"attention.output.LayerNorm"),
        WeightRenaming(r"mlp.fc1", r"intermediate.dense"),
        WeightRenaming(r"mlp.fc2", r"output.dense"),
        WeightRenaming(r"norm2", r"output.LayerNorm"),
        WeightConverter(source_patterns="mixer.Wqkv", target_patterns=_PARTS, operations=[Chunk(dim=0)]),
    ],
    overwrite=True,
)
