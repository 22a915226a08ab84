"""One adapter's folder, as PEFT writes it: what its configuration asks for, and its tensors by the layers they change.

`adapter_config.json` says how the tensors of `adapter_model.safetensors` are meant. LoRA (Hu et al. 2021, arXiv
2106.09685) has two thin matrices for each layer, A [rank, in] and B [out, rank]: the layer's weight gets scale B A.
DoRA (arXiv 2402.09353) then gives each row of the sum a length of its own, and IA³ (arXiv 2205.05638) only multiplies.
Each key of LoraConfig and IA3Config of PEFT 0.21.2 is honoured, without effect on rows, or refused by its name.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.model.json_files import Json, check_known, flag_in, needed_number, object_in, read_object
from engine.model.weights import PLAIN, StoredTensor, stored_tensors
from engine.types import ModelError

_Numbers = NDArray[np.float32]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_BY_TASK = "adapters"  # the folder beside a model's weights with one adapter for each task
_MAX_ALPHA = 1e9
_LORA, _IA3 = "LORA", "IA3"
_ALL_LINEAR = "all-linear"  # of target_modules
_PREFIX = "base_model.model."  # that PEFT puts before the names of the model's own class

# Keys that say where the adapter lies, how it was made or trained, or who wrote it. The tensors say as well where it
# lies, and `_check_named` that both say the same.
WITHOUT_EFFECT = frozenset(
    (
        *("task_type", "auto_mapping", "peft_version", "inference_mode", "target_modules", "exclude_modules"),
        *("layers_to_transform", "layers_pattern", "lora_dropout", "megatron_config", "megatron_core"),
        *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config", "qalora_group_size"),
        *("feedforward_modules", "init_ia3_weights"),
        "fan_in_fan_out",  # the layer's class says it, and PEFT corrects the key by that
    )
)
_HONOURED = frozenset(
    (
        *("peft_type", "base_model_name_or_path", "revision", "modules_to_save", "r", "lora_alpha", "rank_pattern"),
        *("alpha_pattern", "use_rslora", "use_dora", "lora_bias", "bias"),
    )
)
# Keys with which PEFT computes something else, and the values without effect.
_USUAL: Mapping[str, tuple[object, ...]] = {
    "peft_type": (_LORA, _IA3),
    "bias": (None, "none", "all", "lora_only"),
    # the others take something out of the model's own weights first, or are no product of two matrices
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
    **dict.fromkeys(("use_qalora", "ensure_weight_tying"), (None, False)),
    **dict.fromkeys(("trainable_token_indices", "layer_replication", "alora_invocation_tokens"), (None,)),
    **dict.fromkeys(("target_parameters", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config"), (None,)),
}
# The part of a layer's adapter by the end of a tensor's name.
_PARTS = {
    "lora_A.weight": "a",
    "lora_B.weight": "b",
    "lora_embedding_A": "a",
    "lora_embedding_B": "b",
    "lora_B.bias": "bias",
    "lora_magnitude_vector": "magnitude",
    "lora_magnitude_vector.weight": "magnitude",
    "ia3_l": "factor",
}
_OF_A_LAYER = re.compile(r"(?P<layer>.+)\.(?P<part>(lora|ia3)_.+|token_adapter\..+)")
# With bias="all", PEFT writes copies of a saved module's bias as well, under names such as score.original_module.bias
# and classifier.modules_to_save.default.dense.bias.
_OF_COPIES = (r"\.(modules_to_save|original_module)\.", r"\.modules_to_save\.[^.]+\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterLayer:
    """What an adapter does to a linear layer: its weight W [out, in] becomes W + scale B A."""

    a: StoredTensor  # [rank, in]
    b: StoredTensor  # [out, rank]
    scale: float
    magnitude: StoredTensor | None = None  # [out], the lengths of the rows of that sum (DoRA)
    bias: StoredTensor | None = None  # [out], of B, which is multiplied by the scale, too

    def merged_into(self, weight: _Numbers, read: Callable[[StoredTensor], _Numbers]) -> _Numbers:
        """A weight [out, in] with this in it: W + scale B A, and of DoRA with rows of the lengths that it has."""
        found: _Numbers = weight + np.float32(self.scale) * (read(self.b) @ read(self.a))
        if self.magnitude is not None:
            found *= (read(self.magnitude) / np.linalg.norm(found, axis=1))[:, None]
        return found

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in] of the layer."""
        return self.b.shape[0], self.a.shape[1]

    @property
    def rank(self) -> int:
        """Rows of A."""
        return self.a.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An adapter. Layers have the names that they have in the transformers class which it was trained on."""

    name: str  # by which requests choose it; "" = it is merged
    folder: Path
    base: str  # base_model_name_or_path
    revision: str | None  # of the base on the hub
    layers: Mapping[str, AdapterLayer]
    # Of tables of tokens: A [rank, tokens] and B [numbers, rank]. The table [tokens, numbers] gets the transpose.
    tables: Mapping[str, AdapterLayer]
    factors: Mapping[str, StoredTensor]  # IA³'s, by the layer's name: of rows [out, 1] or of what comes in [1, in]
    whole: Mapping[str, StoredTensor]  # tensors that replace the base's, by its name: encoder.layer.0.output.dense.bias
    # Keys of adapter_config.json that ask for more than W + scale B A with one rank and scale for all layers.
    extras: frozenset[str]
    is_of_task: bool = False  # whether it is one of the model's own, of which each is for a task

    @property
    def instead(self) -> str:
        """The end of a message that it can't be kept apart: what to do. "" for the model's own, which only are."""
        return "" if self.is_of_task else f"; {merge_it(self.folder)}"

    @property
    def config_file(self) -> Path:
        """Its adapter_config.json."""
        return self.folder / CONFIG

    @property
    def files(self) -> tuple[Path, Path]:
        """The files that decide what it computes."""
        return self.config_file, self.folder / WEIGHTS


def read_adapter(folder: Path, name: str = "") -> Adapter:
    """The adapter in this folder, without its numbers. Raises ModelError with one line that names file and key."""
    config, file = _config(folder), folder / WEIGHTS
    if not file.is_file():
        pickled = f"; {_PICKLE} is not read, for such files can run code" if (folder / _PICKLE).is_file() else ""
        raise ModelError(f"{file} is missing; only *.safetensors are read{pickled}")
    parts, whole = _by_layer(stored_tensors(file))
    factors = {layer: found.pop("factor") for layer, found in parts.items() if "factor" in found}
    layers = {layer: _layer(layer, found, config, folder) for layer, found in parts.items() if found}
    is_ia3 = config["peft_type"] == _IA3
    if bool(layers) is is_ia3 or bool(factors) is not is_ia3:
        raise ModelError(f"{file} has no adapter of the kind that 'peft_type' in {folder / CONFIG} says")
    for factor in factors.values():
        if len(factor.shape) != 2 or 1 not in factor.shape:
            raise ModelError(f"{factor} of the shape {list(factor.shape)} is neither a row nor a column")
    _check_saved(config, whole, folder)
    _check_named(config, (*layers, *factors), folder)
    of_tables = {layer for layer, found in layers.items() if found.a.name.endswith("lora_embedding_A")}
    return Adapter(
        name=name,
        folder=folder,
        base=config.get("base_model_name_or_path") or "",
        revision=config.get("revision"),
        layers={layer: found for layer, found in layers.items() if layer not in of_tables},
        tables={layer: layers[layer] for layer in of_tables},
        factors=factors,
        whole=whole,
        extras=_extras(config, folder),
    )


def _config(folder: Path) -> Json:
    """adapter_config.json. Raises ModelError for a key that is unknown, or that is not computed."""
    where = folder / CONFIG
    if not where.is_file():
        raise ModelError(f"{where} is missing, so {folder} holds no adapter")
    config = read_object(where)
    check_known(config, WITHOUT_EFFECT | _HONOURED | _USUAL.keys(), str(where))
    for key, values in _USUAL.items():
        value = config.get(key)
        if not any(value is one or (isinstance(one, str) and value == one) for one in values):
            raise ModelError(f"{key!r} in {where} is {value!r}, which is not computed here")
    for key in ("base_model_name_or_path", "revision"):
        if not isinstance(value := config.get(key), str | None) or not (value or "").isprintable():
            raise ModelError(f"{key!r} in {where} is no name")
    return config


def _extras(config: Json, folder: Path) -> frozenset[str]:
    where = str(folder / CONFIG)
    found = {key for key in ("use_dora", "lora_bias", "use_rslora") if flag_in(config, key, where, default=False)}
    found |= {key for key in ("rank_pattern", "alpha_pattern") if object_in(config, key, where)}
    if config.get("bias") not in (None, "none"):
        found.add("bias")
    if config.get("modules_to_save"):
        found.add("modules_to_save")
    if config["peft_type"] == _IA3:
        found.add("peft_type")
    return frozenset(found)


def _by_layer(
    tensors: Iterable[StoredTensor],
) -> tuple[dict[str, dict[str, StoredTensor]], dict[str, StoredTensor]]:
    """The parts of each layer's adapter, and the tensors that replace the base's. Raises ModelError for others."""
    parts: dict[str, dict[str, StoredTensor]] = {}
    whole: dict[str, StoredTensor] = {}
    copies = []  # PEFT writes a saved module's bias three times with bias="all", and reads the plain name
    for tensor in tensors:
        if tensor.dtype not in PLAIN:
            raise ModelError(f"{tensor} is stored as {tensor.dtype}, and not in plain numbers")
        name = tensor.name.removeprefix(_PREFIX)
        found = _OF_A_LAYER.fullmatch(name)
        if found is not None:
            if found["part"] not in _PARTS:
                raise ModelError(f"{tensor} is no part of an adapter that is computed here")
            parts.setdefault(found["layer"], {})[_PARTS[found["part"]]] = tensor
        elif ".modules_to_save." in name or ".original_module." in name:
            copies.append(tensor)
        else:
            whole[name.replace(".base_layer.", ".")] = tensor
    for tensor in copies:
        name = tensor.name.removeprefix(_PREFIX)
        if not any(re.sub(pattern, ".", name) in whole for pattern in _OF_COPIES):
            raise ModelError(f"{tensor} is no part of an adapter that is computed here")
    return parts, whole


def _layer(layer: str, parts: dict[str, StoredTensor], config: Json, folder: Path) -> AdapterLayer:
    where, file = folder / CONFIG, folder / WEIGHTS
    own = _pattern(config, "rank_pattern", layer, where)
    rank = needed_number(own or config, *own or ("r",), file=str(where))
    alpha = _pattern(config, "alpha_pattern", layer, where).get("alpha_pattern", config.get("lora_alpha"))
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not -_MAX_ALPHA < alpha < _MAX_ALPHA:
        raise ModelError(f"'lora_alpha' or 'alpha_pattern' in {where} is no number for {layer!r}")
    a, b = parts.get("a"), parts.get("b")
    if a is None or b is None or not len(a.shape) == len(b.shape) == 2 or not a.shape[0] == b.shape[1] == rank:
        raise ModelError(
            f"the adapter of {layer!r} in {file} is not a pair of matrices of rank {rank}, which 'r' or 'rank_pattern' "
            f"in {where} says"
        )
    for key, part in (("use_dora", "magnitude"), ("lora_bias", "bias")):
        if flag_in(config, key, str(where), default=False) is not (part in parts):
            raise ModelError(
                f"{key!r} in {where} does not fit {file}: of {layer!r} it has the parts {', '.join(parts)}"
            )
        if part in parts and parts[part].shape != b.shape[:1]:
            raise ModelError(f"{parts[part]} has the shape {list(parts[part].shape)}, and not {list(b.shape[:1])}")
    is_stabilized = flag_in(config, "use_rslora", str(where), default=False)
    return AdapterLayer(
        a=a,
        b=b,
        scale=alpha / (math.sqrt(rank) if is_stabilized else rank),
        magnitude=parts.get("magnitude"),
        bias=parts.get("bias"),
    )


def _pattern(config: Json, key: str, layer: str, where: Path) -> Json:
    """The layer's own value under the key, if a pattern has one for it: the first that matches, as PEFT matches
    them."""
    for pattern, value in object_in(config, key, str(where)).items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", layer):
                return {key: value}
        except re.error as error:
            raise ModelError(f"{key!r} in {where}: {pattern!r} is no regular expression ({error})") from error
    return {}


def _check_saved(config: Json, whole: Collection[str], folder: Path) -> None:
    """Raises ModelError if the modules are missing that the adapter replaces. PEFT names some that no model has."""
    names = config.get("modules_to_save") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"'modules_to_save' in {folder / CONFIG} is not a list of names")
    if names and not any(f".{name}." in f".{key}" for name in names for key in whole):
        raise ModelError(
            f"'modules_to_save' in {folder / CONFIG} names {names}, and {folder / WEIGHTS} has none of them"
        )


def _check_named(config: Json, layers: Iterable[str], folder: Path) -> None:
    """Raises ModelError for a layer that the configuration does not name: PEFT would pass its tensors over."""
    where = folder / CONFIG
    named = {key: _names(config, key, where) for key in ("target_modules", "exclude_modules", "layers_pattern")}
    if named["target_modules"] is None:
        raise ModelError(f"'target_modules' in {where} is missing, so PEFT would choose the layers by the base's kind")
    for layer in layers:
        try:
            key = _leaves_out(layer, config, **named)
        except (re.error, TypeError) as error:
            raise ModelError(f"{where} has no names or patterns of layers that can be read: {error}") from error
        if key:
            raise ModelError(f"{key!r} in {where} leaves {layer!r} out, of which {folder / WEIGHTS} has tensors")


def _names(config: Json, key: str, where: Path) -> str | list[str] | None:
    """A regular expression, or names. None = there are none."""
    found = config.get(key)
    if not isinstance(found, str | list | None) or not all(isinstance(name, str) for name in found or ()):
        raise ModelError(f"{key!r} in {where} is neither a text nor a list of names")
    return found


def _leaves_out(
    layer: str,
    config: Json,
    *,
    target_modules: str | list[str] | None,
    exclude_modules: str | list[str] | None,
    layers_pattern: str | list[str] | None,
) -> str:
    """The key by which PEFT's rules leave the layer out; "" = it is named."""
    is_any = isinstance(target_modules, str) and target_modules.lower() == _ALL_LINEAR
    if not is_any and not _is_named(layer, target_modules):
        return "target_modules"
    if _is_named(layer, exclude_modules):
        return "exclude_modules"
    if any(re.match(rf"(^|.*\.){name}($|\..*)", layer) for name in config.get("modules_to_save") or ()):
        return "modules_to_save"
    numbers = config.get("layers_to_transform")
    if numbers is None or numbers == []:
        return ""
    lists = [layers_pattern] if isinstance(layers_pattern, str) else layers_pattern or [""]
    before = (rf"(?:^|.*?\.){pattern}" if pattern else r".*?\.[^.]*" for pattern in lists)
    found = next(filter(None, (re.match(rf"{pattern}\.(?P<number>\d+)\.", layer) for pattern in before)), None)
    is_one = found and int(found["number"]) in ([numbers] if isinstance(numbers, int) else numbers)
    return "" if is_one else "layers_to_transform"


def _is_named(layer: str, names: str | list[str] | None) -> bool:
    """Whether the regular expression matches the layer's name, or one of the names is its end."""
    if isinstance(names, str):
        return bool(names) and re.fullmatch(names, layer) is not None
    return any(f".{layer}".endswith(f".{name}") for name in names or ())


def check_apart(adapter: Adapter, refused: Collection[str] = ()) -> None:
    """Raises ModelError if it can't be kept apart from its base. refused: keys of `extras` that the engine lacks."""
    for key in sorted(adapter.extras & {"modules_to_save", "peft_type", *refused}):
        raise _not_apart(f"{key!r} in {adapter.config_file}", adapter)
    replaced = [] if "bias" in adapter.extras else [tensor for tensor in adapter.whole.values()]
    for tensor in (*(layer.a for layer in adapter.tables.values()), *replaced):
        raise _not_apart(str(tensor), adapter)


def _not_apart(what: str, adapter: Adapter) -> ModelError:
    return ModelError(f"{what} can't be computed beside the model that it changes{adapter.instead}")


def merge_it(folder: Path) -> str:
    """What to do with an adapter's folder where it can't be kept apart from its base."""
    return f"serve {folder} as a model of its own, which merges it"


def fitted(adapter: Adapter, shapes: Mapping[str, tuple[int, int]]) -> dict[str, AdapterLayer]:
    """Its layers by the names that a model has for them. It may have been trained on the class with a head or on the
    one without, where names lack words in front. Raises ModelError for a layer that the model lacks, or that has
    another size. shapes: [out, in] by the layer's name."""
    found = {}
    prefix = _in_front(adapter.layers, shapes)
    for layer, own in adapter.layers.items():
        names = (layer, f"{prefix}.{layer}", layer.removeprefix(f"{prefix}."))
        name = next((each for each in names if each in shapes), None)
        if name is None or shapes[name] != own.shape:
            there = "lacks" if name is None else f"has with the shape {list(shapes[name])}"
            raise ModelError(
                f"{own.a} is of a layer of the shape {list(own.shape)}, which the model {there}; "
                f"'base_model_name_or_path' in {CONFIG} says {adapter.base!r}{adapter.instead}"
            )
        found[name] = own
    return found


def _in_front(layers: Collection[str], names: Collection[str]) -> str:
    """What the names of a model have before those of an adapter, or the other way round; "" = they are alike."""
    for layer in (each for each in layers if each not in names):
        found = {name.removesuffix(f".{layer}") for name in names if name.endswith(f".{layer}")}
        found |= {layer.removesuffix(f".{name}") for name in names if layer.endswith(f".{name}")}
        if len(found) == 1:
            return found.pop()
    return ""


def adapter_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """The weights files of the adapters by task. folder: of the model's own weights."""
    return [folder / _BY_TASK / name / WEIGHTS for name in names]


def read_adapters(folder: Path, names: Sequence[str]) -> list[Adapter]:
    """The adapters of these tasks, all of one rank and each of one scale, as jina_v5 computes them. Raises
    ModelError."""
    files = zip(names, adapter_files(folder, names), strict=True)
    found = [dataclasses.replace(read_adapter(file.parent, name), is_of_task=True) for name, file in files]
    for adapter in found:
        check_apart(adapter, adapter.extras - {"use_rslora"})
        if (_ranks(adapter), adapter.layers.keys()) != (_ranks(found[0]), found[0].layers.keys()):
            raise ModelError(f"{adapter.folder} differs from {found[0].folder} in its rank, or in its layers")
    return found


def _ranks(adapter: Adapter) -> set[Any]:
    return {layer.rank for layer in adapter.layers.values()}
