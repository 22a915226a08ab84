"""Reads the entries of modules.json, and the options of modules after the transformer, like sentence-transformers 6.

engine.model.detection.chains knows the supported chains. Reads no weights.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.model.json_files import MAX_DEPTH, Json, number_in, read, read_object, read_optional
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
    renamed = ({**entry, "type": known.get(str(entry.get("type")), entry.get("type"))} for entry in entries)
    return tuple(as_module(entry, "modules.json") for entry in renamed)


def as_module(entry: Json, file: str) -> Module:
    """The module of an entry in `file`. Raises ModelError for a path out of the folder."""
    return Module(kind=_kind(entry), path=_module_path(entry, file))


def read_pooling(folder: Path, module: Module, *, include_prompt: bool = True) -> tuple[tuple[str, ...], bool]:
    """The poolings of a Pooling module, in the order of joining, and whether a prompt's tokens count.

    include_prompt: if the module does not say so.
    """
    config = read_object(folder / module.path / "config.json")
    return _poolings(config), bool(config.get("include_prompt", include_prompt))


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
    path = PurePosixPath(str(entry.get("path", "")))
    if path.is_absolute() or ".." in path.parts:
        raise ModelError(f"{file} has a path that leads out of the folder")
    if len(path.parts) > MAX_DEPTH:
        raise ModelError(f"{file} has a path that is more than {MAX_DEPTH} folders deep")
    return path


def _poolings(config: Json) -> tuple[str, ...]:
    known = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)]
    unknown = [name for name in config if name.startswith("pooling_mode_") and name not in _POOLING_FLAGS]
    modes = config.get("pooling_mode") or [*known, *(name for name in unknown if config[name])] or "mean"
    modes = modes if isinstance(modes, list) else [modes]
    return tuple(known_pooling(mode, "the Pooling module") for mode in modes)


def _step(folder: Path, module: Module, row: str) -> Step | None:
    """None for modules that only matter in training."""
    path = module.path
    match module.kind:
        case "Dense":
            return _dense(path, read_object(folder / path / "config.json"), row)
        case "LayerNorm":
            config = read_object(folder / path / "config.json")
            return LayerNorm(folder=str(path), size=_number(path, config, "dimension"))
        case "Normalize":
            _check_names(path, read_optional(folder / path / "config.json"), row)
            return Normalize()
    return None


def _dense(path: PurePosixPath, config: Json, row: str) -> Dense:
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
        has_bias=_flag(path, config, "bias", default=True),
        activation=activation,
        has_residual=_flag(path, config, "use_residual", default=False),
    )


def _check_names(path: PurePosixPath, config: Json, row: str) -> None:
    """Raises ModelError if a module's input or output is not `row`."""
    given = config.get("module_input_name", row)
    names = (given, config.get("module_output_name") or given)
    if names != (row, row):
        raise ModelError(f"{path}/config.json makes {names[1]!r} of {names[0]!r}; only {row} is supported")


def _number(path: PurePosixPath, config: Json, key: str) -> int:
    number = number_in(config, key)
    if number is None:
        raise ModelError(f"{path}/config.json has no {key}")
    return number


def _flag(path: PurePosixPath, config: Json, key: str, *, default: bool) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ModelError(f"{key!r} in {path}/config.json is neither true nor false")
    return value
