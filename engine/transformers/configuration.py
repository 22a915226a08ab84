"""The classes that serve an architecture, where they are ours, and the configuration of a model in its class.

OWN has the architectures that transformers' automatic classes do not serve; their modules are in models/. The
configuration is read from config.json, or made from what the folder's own code means by it.
"""

import codecs
import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig
from transformers.utils import logging

from engine.machine.failures import one_line
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, SequenceScores, TransformersHead
from engine.types import ModelError


@dataclass(frozen=True, slots=True)
class OwnModel:
    """The classes of an architecture, imported when they are needed."""

    module: str  # where they are, in models/
    config: str  # a PretrainedConfig, whose model_type is the architecture
    model: str  # gives the rows of tokens
    scores: str = ""  # …ForSequenceClassification; "" = there is none
    answers: str = ""  # …ForCausalLM; "" = there is none

    @property
    def config_class(self) -> Any:
        """The class of configurations."""
        return self._named(self.config)

    def class_for(self, folder: ModelFolder) -> Any:
        """The class of models for the folder's heads. Raises ModelError if there is none."""
        head = next((head for head in folder.heads if isinstance(head, TransformersHead)), None)
        named = {SequenceScores: self.scores, AnswerScore: self.answers}
        name = named.get(type(head), "") if head else self.model
        if not name:
            raise ModelError(f"there is no {folder.architecture!r} model for {folder.task}")
        return self._named(name)

    def _named(self, name: str) -> Any:
        return getattr(importlib.import_module(f"engine.transformers.models.{self.module}"), name)


# architecture -> its classes. known_code gives a folder one of these names, or config.json's model_type is one.
OWN = {
    "cost_wise_gemma": OwnModel("bge", "CostWiseGemmaConfig", "Gemma2Model", "CostWiseGemmaForSequenceClassification"),
    "jina_adapters": OwnModel("xlm_roberta_flash", "JinaAdaptersConfig", "JinaAdaptersModel"),
    "jina_v5": OwnModel("jina_v5", "JinaV5Config", "JinaV5Model"),
    "jina_bert": OwnModel("jina_bert", "JinaBertConfig", "JinaBertModel", "JinaBertForSequenceClassification"),
    "kalm_reranker": OwnModel("kalm", "KaLMRerankerConfig", "KaLMRerankerModel", answers="KaLMRerankerForCausalLM"),
    "layerwise_minicpm": OwnModel(
        "bge", "LayerWiseMiniCPMConfig", "GraniteModel", "LayerWiseMiniCPMForSequenceClassification"
    ),
    "nomic_bert_moe": OwnModel("nomic_moe", "NomicMoeConfig", "NomicMoeModel"),
    "lfm2_bidirec": OwnModel("lfm2_bidirec", "Lfm2BidirecConfig", "Lfm2BidirecModel"),
    "llama_bidirec": OwnModel("nvidia", "LlamaBidirecConfig", "LlamaModel", "LlamaBidirecForSequenceClassification"),
    "mt5": OwnModel("t5", "MT5Config", "T5Encoder"),
    "nvembed": OwnModel("nvidia", "NVEmbedConfig", "NVEmbedModel"),
    "t5": OwnModel("t5", "T5Config", "T5Encoder"),
    "xlm-roberta-flash": OwnModel(
        "xlm_roberta_flash",
        "XLMRobertaFlashConfig",
        "XLMRobertaFlashModel",
        "XLMRobertaFlashForSequenceClassification",
    ),
}


# What a model has besides its layers for texts. Without their configurations its class passes over their weights.
_TOWERS = {"embedding_gemma2": ("vision_config", "audio_config")}


def read_config(folder: ModelFolder) -> PretrainedConfig:
    """The configuration of the class that serves the folder. Raises ModelError if that class can't take it."""
    try:
        with quiet():
            return _config(folder)
    except Exception as error:  # transformers has no exception class for the many ways in which a file can be wrong
        file = folder.weights_folder / "config.json"
        if file.read_bytes().startswith(codecs.BOM_UTF8):
            raise ModelError(
                f"{file} begins with a byte order mark, which transformers does not read: save it without one"
            ) from error
        raise ModelError(f"transformers can't read {file}: {one_line(error)}") from error


def _config(folder: ModelFolder) -> PretrainedConfig:
    own = OWN.get(folder.architecture)
    config: PretrainedConfig
    if own is not None:
        config = own.config_class.from_dict(folder.config)
    elif folder.is_translated:
        config = CONFIG_MAPPING[folder.architecture].from_dict(folder.config)
    else:
        config = AutoConfig.from_pretrained(folder.weights_folder, local_files_only=True, trust_remote_code=False)
        for tower in _TOWERS.get(folder.architecture, ()):
            setattr(config, tower, None)
    return config


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' progress bars, warnings and reports out of the log. Errors are raised anyway."""
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
