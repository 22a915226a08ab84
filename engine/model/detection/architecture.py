"""Finds the architecture that serves a model, and config.json in that architecture's words.

auto_map names Python files in the folder or in another repository. They are never run. A repository with auto_map is
served if the code is known (engine.model.known_code), and something here computes the same.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from engine.model.detection import library
from engine.model.detection.config import check_agreement, check_keys, check_rope, check_values, layers_of
from engine.model.json_files import Json, read_optional
from engine.model.known_code import table
from engine.model.known_code.known_code import TRUST, KnownCode, check_trusted, translated
from engine.model.known_code.qwen2 import REWARD
from engine.types import ModelError

_ELSEWHERE = {REWARD: "--engine tensorrt-llm with --tensorrt-llm-model-class stock has one"}
_AUTO_MAP = "auto_map"
LISTWISE = "JinaForRanking"  # its class, in the model's own code
INSTEAD_OF_LISTWISE = (
    "it scores all documents of a query in one sequence, and here each pair is one of its own. Take a reranker of "
    "pairs, such as jinaai/jina-reranker-v2-base-multilingual or Qwen/Qwen3-Reranker-0.6B"
)
_PRETRAINING = ("ForCausalLM", "ForMaskedLM", "ForPreTraining")  # classes whose head embeddings do not need


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The architecture that serves a model."""

    config: Json  # config.json in the words of the architecture; its model_type is the architecture's
    is_translated: bool = False  # whether that is not what the file says
    notes: tuple[str, ...] = ()  # about code that is not run, and keys that are not read


def architecture_of(
    folder: Path, config: Json, *, known_classes: Collection[str] = (), trusted: Collection[str] = ()
) -> Architecture:
    """The architecture of the transformer in this folder. The others: see engine.model.model_folder.read. Raises
    ModelError if it can't be served."""
    check_values(config)
    if LISTWISE in (config.get("architectures") or ()):
        raise ModelError(f"{LISTWISE}: a listwise reranker, which is not supported: {INSTEAD_OF_LISTWISE}")
    model_type = config.get("model_type")
    code = _known_code(config, trusted)
    if code is None and (not isinstance(model_type, str) or not model_type):
        raise ModelError("config.json has no model_type, so the architecture is unknown")
    served = translated(code, config, trusted) if code else config
    classes = library.classes()
    known = library.architectures(classes)
    # a name of ours in the file itself is no translation, and would be read in other words
    is_known = served["model_type"] in known or (code is not None and code.is_ours)
    if known and not is_known:
        instead = table.instead_of(str(model_type))
        raise ModelError(
            f"the installed transformers does not know the architecture {model_type!r} (model_type in config.json)"
            f"{instead and f'; {instead}'}"
        )
    layers = (code and code.layers) or layers_of(served)
    if code:
        check_rope({**served, "model_type": layers}, library.keys_of(layers))
    if known:  # else the library is not installed, and what it reads is not known
        check_agreement(config, layers, has_code=code is not None)
        _check_class(config, code, classes, known_classes)
    return Architecture(
        config=served,
        is_translated=any(config.get(key) != value for key, value in served.items()),
        notes=(*_notes(folder, config, trusted), *(() if code else check_keys(config, trusted))),
    )


def _notes(folder: Path, config: Json, trusted: Collection[str]) -> tuple[str, ...]:
    files = [name for name in ("config.json", "tokenizer_config.json") if _AUTO_MAP in read_optional(folder / name)]
    passed_over = sorted(config.keys() & set(trusted))
    return (
        *((f"{_AUTO_MAP} in {' and '.join(files)} is not followed",) if files else ()),
        *((f"{TRUST}: {', '.join(passed_over)}",) if passed_over else ()),
    )


def _known_code(config: Json, trusted: Collection[str]) -> KnownCode | None:
    """The code that auto_map names; None if there is none, or it is trusted. Raises ModelError if it is not known."""
    names, code = table.named(config), table.find(config)
    if _AUTO_MAP in trusted and names and (code is None or code.instead):
        return None
    check_trusted(config, {_AUTO_MAP} & set(trusted), ())
    if names and code is None:
        raise ModelError(
            f"the model needs the code of {table.first_unknown(names)[:100]}, which auto_map in config.json names and "
            f"which is never run; it is not among the code that is known here for its model_type. {_way_on(config)}"
        )
    if names and code and code.instead:
        raise ModelError(f"the model needs the code of {names[0][:100]}, which is never run; {code.instead}")
    return code


def _way_on(config: Json) -> str:
    """What is left where the code is not known: trust, if transformers has a class that it could be served by."""
    model_type, known = config.get("model_type"), library.architectures(library.classes())
    if known and isinstance(model_type, str) and model_type not in known:
        return f"transformers has no class for {model_type!r} either, so the model can't be served here"
    return f"If transformers' own class gives the same rows, say so by {TRUST} {_AUTO_MAP}"


def _check_class(config: Json, code: KnownCode | None, classes: str, known_classes: Collection[str]) -> None:
    """Raises ModelError for a class in the folder's own code on the library's layers, as in some rerankers.

    Without the code, the rows would look right and mean something else.
    """
    name = next(iter(config.get("architectures") or ()), "")
    is_code = any(named.endswith(f".{name}") for named in table.named(config))
    other = code.classes.get(name, "") if code else name
    has_class = other and (f'"{other}"' in classes or other in known_classes or (code and code.is_ours))
    if is_code and not has_class and not name.endswith(_PRETRAINING):
        raise ModelError(
            f"the model needs the code of {name}, which auto_map names and which is never run; transformers has no "
            f"class of that name, and {_ELSEWHERE.get(name, 'a conversion to one of its own could be served')}"
        )
