"""Models that AutoModel does not give: layers of our own, and classes of the library that it passes over.

A module for each, of at most 150 lines, and its row in OWN. Its classes are PreTrainedModels whose attention layers
call the function that transformers' AttentionInterface has for `config._attn_implementation`, as the library's do, so
that packed attention serves them. CONTRIBUTING has the recipe: "A repository with its own code".
"""

import importlib
from dataclasses import dataclass
from typing import Any

from engine.model.model_folder import ModelFolder
from engine.model.tasks import SequenceScores, TransformersHead
from engine.types import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """The classes of an architecture, imported when they are needed."""

    module: str  # where they are
    config: str  # a PretrainedConfig, whose model_type is the architecture
    model: str  # gives the rows of tokens
    scores: str = ""  # …ForSequenceClassification; "" = there is none

    @property
    def config_class(self) -> Any:
        """The class of configurations."""
        return getattr(importlib.import_module(self.module), self.config)

    def class_for(self, folder: ModelFolder) -> Any:
        """The class of models for the folder's heads. Raises ModelError if there is none."""
        head = next((head for head in folder.heads if isinstance(head, TransformersHead)), None)
        name = self.scores if isinstance(head, SequenceScores) else "" if head else self.model
        if not name:
            raise ModelError(f"there is no {folder.architecture!r} model for {folder.task}")
        return getattr(importlib.import_module(self.module), name)


# architecture -> its classes. known_code gives a folder one of these names, or config.json's model_type is one.
_HERE = "engine.transformers.models"
OWN: dict[str, OwnModel] = {
    "jina_adapters": OwnModel(module=f"{_HERE}.jina_adapters", config="JinaAdaptersConfig", model="JinaAdaptersModel"),
    "jina_bert": OwnModel(
        module=f"{_HERE}.jina_bert",
        config="JinaBertConfig",
        model="JinaBertModel",
        scores="JinaBertForSequenceClassification",
    ),
    "nomic_bert_moe": OwnModel(module=f"{_HERE}.nomic_moe", config="NomicMoeConfig", model="NomicMoeModel"),
    "llama_bidirec": OwnModel(
        module=f"{_HERE}.llama_bidirec",
        config="LlamaBidirecConfig",
        model="LlamaModel",
        scores="LlamaBidirecForSequenceClassification",
    ),
    "mt5": OwnModel(module=f"{_HERE}.t5", config="MT5Config", model="T5Encoder"),
    "nvembed": OwnModel(module=f"{_HERE}.nv_embed", config="NVEmbedConfig", model="NVEmbedModel"),
    "t5": OwnModel(module=f"{_HERE}.t5", config="T5Config", model="T5Encoder"),
    "xlm-roberta-flash": OwnModel(
        module=f"{_HERE}.xlm_roberta_flash",
        config="XLMRobertaFlashConfig",
        model="XLMRobertaFlashModel",
        scores="XLMRobertaFlashForSequenceClassification",
    ),
}


def find(architecture: str) -> OwnModel | None:
    """The row of an architecture; None = transformers' automatic classes have it."""
    return OWN.get(architecture)
