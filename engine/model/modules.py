"""Reads the entries of modules.json, and the options of modules after the transformer, like sentence-transformers 6.

engine.model.detection.chains knows the supported chains. Reads no weights.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.model.json_files import (
    MAX_DEPTH,
    Json,
    check_known,
    flag_in,
    number_in,
    read,
    read_object,
    read_optional,
)
from engine.model.known_code import table
from engine.model.steps import ACTIVATIONS, POOLINGS, Dense, LayerNorm, Normalize, Step
from engine.types import ModelError

# the names of sentence-transformers and TEI -> our name
_POOLINGS = {**{name: name for name in POOLINGS}, "lasttoken": "last", "last-token": "last"}
# in the order in which several poolings are joined
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_SIZES = ("embedding_dimension", "word_embedding_dimension")  # of the rows; the model's own size counts
_POOLING_KEYS = (*_POOLING_FLAGS, *_SIZES, "pooling_mode", "include_prompt")
SPLADE_KEYS = (*_SIZES, "pooling_strategy", "activation_function", "chunk_size")  # of a SpladePooling module
_DENSE_KEYS = (
    *("in_features", "out_features", "bias", "activation_function", "use_residual"),
    *("module_input_name", "module_output_name"),
)
_ROW = "sentence_embedding"  # sentence-transformers' name of the pooled row
TOKEN_ROWS = "token_embeddings"  # its name of the rows of tokens
_OWN = ("sentence_transformers.", "pylate.models.")  # for classes of these packages the class name is enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """An entry of modules.json."""

    kind: str  # the class's name, with its module if it is not sentence-transformers' or PyLate's
    path: PurePosixPath  # its folder, in the model's folder


def read_entries(folder: Path) -> tuple[Module, ...]:
    """All entries in order. Raises ModelError."""
    entries = read(folder / "modules.json")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ModelError("modules.json is not a list of objects")
    code = table.find(read_optional(folder / "config.json"))
    known = {code.sentence_module: f"{_OWN[0]}Transformer"} if code else {}
    renamed = [{**entry, "type": known.get(str(entry.get("type")), entry.get("type"))} for entry in entries]
    names = [str(entry["name"]) for entry in entries if "name" in entry]
    if len(set(names)) < len(names):  # the library keeps the last of them, in the place of the first
        raise ModelError("modules.json has two modules of one name; give each another")
    return tuple(as_module(entry, "modules.json") for entry in renamed)


def as_module(entry: Json, file: str) -> Module:
    """The module of an entry in `file`. Raises ModelError for a path that is no text, or leads out of the folder."""
    return Module(kind=_kind(entry), path=_module_path(entry, file))


def read_pooling(folder: Path, module: Module, *, include_prompt: bool = True) -> tuple[tuple[str, ...], bool]:
    """The poolings of a Pooling module, in the order of joining, and whether a prompt's tokens count.

    include_prompt: if the module does not say so.
    """
    file = f"{module.path}/config.json"
    config = read_object(folder / file)
    check_known(config, _POOLING_KEYS, file)
    return _poolings(config, file), flag_in(config, "include_prompt", file, default=include_prompt)


def read_steps(folder: Path, modules: Iterable[Module], *, row: str = _ROW) -> tuple[Step, ...]:
    """The steps for Dense, LayerNorm and Normalize; other modules do not change a row. row: the only allowed input."""
    return tuple(step for module in modules if (step := _step(folder, module, row)) is not None)


def known_pooling(mode: object, where: str) -> str:
    """Our name of a pooling. Raises ModelError for an unknown one."""
    if not isinstance(mode, str) or mode not in _POOLINGS:
        known = "cls, max, mean, mean_sqrt_len_tokens, weightedmean and last-token"
        raise ModelError(f"{where} asks for pooling {str(mode)!r}; supported are {known}")
    return _POOLINGS[mode]


def _kind(entry: Json) -> str:
    name = str(entry.get("type"))
    return name.rpartition(".")[2] if name.startswith(_OWN) else repr(name)


def _module_path(entry: Json, file: str) -> PurePosixPath:
    given = entry.get("path")
    if not isinstance(given, str):
        raise ModelError(f"'path' of a module in {file} is not a text")
    path = PurePosixPath(given)
    if path.is_absolute() or ".." in path.parts:
        raise ModelError(f"{file} has a path that leads out of the folder")
    if len(path.parts) > MAX_DEPTH:
        raise ModelError(f"{file} has a path that is more than {MAX_DEPTH} folders deep")
    return path


def _poolings(config: Json, file: str) -> tuple[str, ...]:
    """`pooling_mode` outranks the flags of older versions; without either, it is the mean."""
    flagged = [mode for flag, mode in _POOLING_FLAGS.items() if flag_in(config, flag, file, default=False)]
    modes = config.get("pooling_mode", flagged or "mean")
    if modes == []:
        raise ModelError(f"'pooling_mode' in {file} names no pooling")
    return tuple(known_pooling(mode, file) for mode in (modes if isinstance(modes, list) else [modes]))


def _step(folder: Path, module: Module, row: str) -> Step | None:
    """None for modules that only matter in training."""
    path = module.path
    match module.kind:
        case "Dense":
            return _dense(path, read_object(folder / path / "config.json"), row)
        case "LayerNorm":
            config = read_object(folder / path / "config.json")
            check_known(config, ("dimension",), f"{path}/config.json")
            return LayerNorm(folder=str(path), size=_number(path, config, "dimension"))
        case "Normalize":
            _check_names(path, read_optional(folder / path / "config.json"), row)
            return Normalize()
    return None


def _dense(path: PurePosixPath, config: Json, row: str) -> Dense:
    check_known(config, _DENSE_KEYS, f"{path}/config.json")
    _check_names(path, config, row)
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = str(name).rpartition(".")[2]
    if not str(name).startswith("torch.") or activation not in ACTIVATIONS:
        raise ModelError(
            f"{path}/config.json asks for the activation {str(name)!r}; supported are torch's {', '.join(ACTIVATIONS)}"
        )
    return Dense(
        folder=str(path),
        in_features=_number(path, config, "in_features"),
        out_features=_number(path, config, "out_features"),
        has_bias=flag_in(config, "bias", f"{path}/config.json", default=True),
        activation=activation,
        has_residual=flag_in(config, "use_residual", f"{path}/config.json", default=False),
    )


def _check_names(path: PurePosixPath, config: Json, row: str) -> None:
    """Raises ModelError if a module's input or output is not `row`."""
    given = config.get("module_input_name", row)
    names = (given, config.get("module_output_name") or given)
    if names != (row, row):
        raise ModelError(f"{path}/config.json makes {names[1]!r} of {names[0]!r}; only {row} is supported")


def _number(path: PurePosixPath, config: Json, key: str) -> int:
    number = number_in(config, key, file=f"{path}/config.json")
    if number is None:
        raise ModelError(f"{path}/config.json has no {key}")
    return number
