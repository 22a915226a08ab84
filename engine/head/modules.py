"""modules.json and the modules after the Transformer, as sentence-transformers 6 reads them. Reads no weights."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.head.steps import ACTIVATIONS, Dense, LayerNorm, Normalize, Step
from engine.model_json import Json, number_in, read, read_object, read_optional
from engine.types import ModelError

# as sentence-transformers, TEI and we spell them -> as we spell them
_POOLINGS = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean",
    "lasttoken": "last",
    "last-token": "last",
    "last": "last",
}
# in the order in which several are joined
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ROW = "sentence_embedding"  # what sentence-transformers calls the pooled row
_AFTER_POOLING = ("Dense", "LayerNorm", "Normalize", "Dropout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """From token rows to the row that is handed out."""

    poolings: tuple[str, ...]  # joined in this order
    pooling_source: str  # the file that says so
    include_prompt: bool  # False = prompts are left out of the pooling
    steps: tuple[Step, ...]  # after the pooling
    normalize: bool  # a last step: scaled to length 1


def read_chain(folder: Path, *, pooling: str | None) -> Chain:
    """`pooling` (one of our names) overrules the Pooling module. Raises ModelError where a module is not supported."""
    _, pooling_entry, *others = _entries(folder)
    source = str(_module_folder(pooling_entry) / "config.json")
    config = read_object(folder / source)
    steps = [step for entry in others if (step := _step(folder, entry)) is not None]
    normalize = bool(steps) and isinstance(steps[-1], Normalize)
    return Chain(
        poolings=(pooling,) if pooling else _poolings(config),
        pooling_source=source,
        include_prompt=bool(config.get("include_prompt", True)),
        steps=tuple(steps[:-1] if normalize else steps),
        normalize=normalize,
    )


def known_pooling(mode: object, where: str) -> str:
    """Our name of it. Raises ModelError where there is none."""
    if not isinstance(mode, str) or mode not in _POOLINGS:
        known = "cls, max, mean, mean_sqrt_len_tokens, weightedmean and last-token"
        raise ModelError(f"{where} asks for pooling {str(mode)!r}; supported are {known}")
    return _POOLINGS[mode]


def _entries(folder: Path) -> list[Json]:
    entries = read(folder / "modules.json")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ModelError("modules.json is not a list of objects")
    kinds = [_kind(entry) for entry in entries]
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]).issubset(_AFTER_POOLING):
        raise ModelError(
            f"modules.json lists {', '.join(kinds) or 'nothing'}; "
            f"supported are a Transformer, a Pooling and then any of {', '.join(_AFTER_POOLING)}"
        )
    if entries[0].get("path"):
        raise ModelError(f"modules.json has the Transformer in {entries[0]['path']!r}, not in the folder itself")
    return entries


def _kind(entry: Json) -> str:
    """The class name of sentence-transformers' own modules, the full name of any other."""
    name = str(entry.get("type"))
    return name.rpartition(".")[2] if name.startswith("sentence_transformers.") else repr(name)


def _module_folder(entry: Json) -> PurePosixPath:
    path = PurePosixPath(str(entry.get("path", "")))
    if path.is_absolute() or ".." in path.parts:
        raise ModelError("modules.json has a path that leads out of the folder")
    return path


def _poolings(config: Json) -> tuple[str, ...]:
    known = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)]
    unknown = [name for name in config if name.startswith("pooling_mode_") and name not in _POOLING_FLAGS]
    modes = config.get("pooling_mode") or [*known, *(name for name in unknown if config[name])] or "mean"
    modes = modes if isinstance(modes, list) else [modes]
    return tuple(known_pooling(mode, "the Pooling module") for mode in modes)


def _step(folder: Path, entry: Json) -> Step | None:
    """None for what does nothing to a row that is not trained on."""
    path = _module_folder(entry)
    match _kind(entry):
        case "Dense":
            return _dense(path, read_object(folder / path / "config.json"))
        case "LayerNorm":
            config = read_object(folder / path / "config.json")
            return LayerNorm(folder=str(path), size=_number(path, config, "dimension"))
        case "Normalize":
            _check_names(path, read_optional(folder / path / "config.json"))
            return Normalize()
    return None


def _dense(path: PurePosixPath, config: Json) -> Dense:
    _check_names(path, config)
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


def _check_names(path: PurePosixPath, config: Json) -> None:
    """A module can be told to work on something else than the pooled row."""
    names = (config.get("module_input_name", _ROW), config.get("module_output_name") or _ROW)
    if names != (_ROW, _ROW):
        raise ModelError(f"{path}/config.json makes {names[1]!r} of {names[0]!r}; only {_ROW} is supported")


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
