"""Checks that the installed transformers has the architecture. If only the folder has code for it, names alternatives.

auto_map names Python files in the folder or in another repository. They are never run. A repository with auto_map is
served if transformers has its own classes for the architecture in config.json.
"""

import importlib.util
import re
from collections.abc import Collection
from pathlib import Path

from engine.model.json_files import Json, object_in, read_optional
from engine.types import ModelError

# A class in a folder's own code, for which TensorRT-LLM has a class: see engine.tensorrt_llm.planning.stock
REWARD = "Qwen2ForRewardModel"
_ELSEWHERE = {REWARD: "--engine tensorrt-llm with --tensorrt-llm-model-class stock has one"}
_PRETRAINING = ("ForCausalLM", "ForMaskedLM", "ForPreTraining")  # classes whose head embeddings do not need
_JINA_V3 = "jinaai/jina-embeddings-v3-hf is the same model for transformers' own classes"
# model_type of repositories with code -> how to serve such a model without the code
_INSTEAD = {
    "new": "transformers' own classes serve such models where they are converted to its architecture 'gte'",
    "jina_embeddings_v3": _JINA_V3,
    "xlm-roberta-flash": _JINA_V3,
    "bert-flash": "no form of it for transformers' own classes is known here",
}
# Code that takes the name of a transformers architecture, but has other layers: part of auto_map -> model_type
_DISGUISED = {
    "xlm-roberta-flash-implementation": "xlm-roberta-flash",
    "jina-bert-flash-implementation": "bert-flash",
    "jina-bert-implementation": "bert-flash",
    "jina-bert-v2-qk-post-norm": "bert-flash",
}
_NOT_NATIVE = (("nomic_bert", "num_experts"), ("nomic_bert", "moe_every_n_layers"))  # parts that transformers lacks


# Keys of Nomic's own code, which transformers ignores -> transformers' key, and its default.
_OLD_NOMIC: dict[str, tuple[str, object]] = {
    "n_embd": ("hidden_size", 768),
    "n_head": ("num_attention_heads", 12),
    "n_inner": ("intermediate_size", 3072),
    "n_layer": ("num_hidden_layers", 12),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
    "rotary_emb_base": ("rope_theta", 1000),
}


def architecture_of(folder: Path, config: Json, *, known_classes: Collection[str] = ()) -> tuple[str, str]:
    """model_type, and a note if the folder has code for it. known_classes: see engine.model.model_folder.read.

    Raises ModelError if it can't be served.
    """
    architecture = config.get("model_type")
    if not isinstance(architecture, str) or not architecture:
        raise ModelError("config.json has no model_type, so the architecture is unknown")
    files = [name for name in ("config.json", "tokenizer_config.json") if "auto_map" in read_optional(folder / name)]
    _check_disguise(config)
    _check_parts(architecture, config)
    if architecture == "nomic_bert":
        _check_old_words(config)
    library = _library_source()
    known = _known_architectures(library)
    if known and architecture not in known:
        code = ", and the code that auto_map names is never run" if files else ""
        instead = f"; {_INSTEAD[architecture]}" if architecture in _INSTEAD else ""
        raise ModelError(f"the installed transformers does not know the architecture {architecture!r}{code}{instead}")
    if known:
        _check_class(config, library, known_classes)
    return architecture, f"auto_map in {' and '.join(files)} is not followed" if files else ""


def _check_disguise(config: Json) -> None:
    named = str(config.get("auto_map") or "")
    for code, model_type in _DISGUISED.items():
        if code in named:
            raise ModelError(f"the model needs the code of {code}, which is never run; {_INSTEAD[model_type]}")


def _check_parts(architecture: str, config: Json) -> None:
    for model_type, key in _NOT_NATIVE:
        if model_type == architecture and (config.get(key) or 0) not in (0, 1):
            raise ModelError(f"{key} in config.json asks for a part of {architecture} that transformers lacks")


def _check_old_words(config: Json) -> None:
    """Raises ModelError if a key of Nomic's own code and transformers' key differ: rows could be silently wrong."""
    own = {**config, **object_in(config, "rope_parameters")}
    for old, (name, usual) in _OLD_NOMIC.items():
        if config.get(old) is not None and config[old] != own.get(name, usual):
            raise ModelError(
                f"{old} in config.json is a word of the model's own code, which transformers passes over for {name}; "
                f"give it as {name} to serve the model"
            )


def _check_class(config: Json, library: str, known_classes: Collection[str]) -> None:
    """Raises ModelError for a class in the folder's own code on the library's layers, as in some rerankers.

    Without the code, the rows would look right and mean something else.
    """
    name = next(iter(config.get("architectures") or ()), "")
    is_code = any(str(code).endswith(f".{name}") for code in object_in(config, "auto_map").values())
    if is_code and f'"{name}"' not in library and not name.endswith(_PRETRAINING) and name not in known_classes:
        raise ModelError(
            f"the model needs the code of {name}, which auto_map names and which is never run; transformers has no "
            f"class of that name, and {_ELSEWHERE.get(name, 'a conversion to one of its own could be served')}"
        )


def _known_architectures(library: str) -> frozenset[str]:
    """The model_type of each base model in the library; empty if its source has another form."""
    _, _, rest = library.partition("\nMODEL_MAPPING_NAMES = OrderedDict(")
    table, _, _ = rest.partition("\n)\n")
    return frozenset(re.findall(r'\("([^"]+)", ["(]', table))


def _library_source() -> str:
    """The source file in which the installed transformers lists its classes, or "". Importing it would take seconds."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return ""
    source = Path(spec.submodule_search_locations[0], "models", "auto", "modeling_auto.py")
    return source.read_text(encoding="utf-8") if source.is_file() else ""
