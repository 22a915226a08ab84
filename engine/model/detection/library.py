"""The abilities of the installed transformers, read from its source as text: importing it would take seconds."""

import functools
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

# How a key is written where it is read: config.key, "key" as an argument, and as a field of a configuration.
_OWN_KEYS = re.compile(r'config\.(\w+)|"(\w+)"|^    (\w+): ', re.MULTILINE)
_KEYS_OF_ALL = re.compile(r'kwargs\.(?:pop|get)\("(\w+)"|^    (\w+): ', re.MULTILINE)
_OF_ALL = ("configuration_utils.py", "modeling_rope_utils.py", "generation/configuration_utils.py")


def classes() -> str:
    """The source file that lists the library's classes; "" if there is no transformers."""
    return _text_of("models/auto/modeling_auto.py")


def architectures(classes: str) -> frozenset[str]:
    """The model_type of each base model; empty if the source has another form."""
    _, _, rest = classes.partition("\nMODEL_MAPPING_NAMES = OrderedDict(")
    table, _, _ = rest.partition("\n)\n")
    return frozenset(re.findall(r'\("([^"]+)", ["(]', table))


@functools.cache
def keys_of(model_type: str) -> frozenset[str]:
    """The keys of config.json that an architecture's own source reads, and some other words.

    Empty if the source is not found.
    """
    text = _source(model_type)
    keys = {key for keys in _OWN_KEYS.findall(text) for key in keys if key}
    reads_causal = "create_causal_mask" in text and "is_decoder" not in keys  # that function reads is_causal
    return frozenset(keys | {"is_causal"} if reads_causal else keys)


def turns_by_layer(model_type: str) -> tuple[bool, bool]:
    """Whether an architecture has angles (RoPE) for each type of layer, and whether it takes rope_scaling for them."""
    text = _source(model_type)
    return "rope_parameters[layer_type]" in text, ".update(rope_scaling)" in text


def has_head_size(model_type: str) -> bool:
    """Whether an architecture's heads have a size of their own where config.json does not say it."""
    return re.search(r"^    head_dim: int(?: \| None)? = \d", _source(model_type), re.MULTILINE) is not None


def has_padding(model_type: str) -> bool:
    """Whether an architecture's table of tokens has a row for padding."""
    return "padding_idx" in _source(model_type)


@functools.cache
def activations() -> frozenset[str]:
    """The names of activations; empty if the source has another form."""
    _, _, table = _text_of("activations.py").partition("\nACT2CLS = {")
    return frozenset(re.findall(r'^    "(\w+)":', table.partition("\n}")[0], re.MULTILINE))


@functools.cache
def keys_of_all() -> frozenset[str]:
    """The keys that every architecture reads, by the classes that all share, and some other words."""
    return frozenset(key for name in _OF_ALL for keys in _KEYS_OF_ALL.findall(_text_of(name)) for key in keys if key)


def _source(model_type: str) -> str:
    """The source of an architecture's configuration and modules; "" if it is not found."""
    found = [file for file in _configurations(model_type) if f'model_type = "{model_type}"' in _text(file)]
    if not found:
        return ""
    model = found[0].with_name(found[0].name.replace("configuration_", "modeling_"))
    return f"{_text(found[0])}\n{_text(model)}"


def _configurations(model_type: str) -> Iterator[Path]:
    """Files that may have the architecture's configuration: gemma3_text is in gemma3's folder."""
    folder, name = _folder(), model_type.replace("-", "_")
    while folder and name:
        yield from sorted((folder / "models" / name).glob("configuration_*.py"))
        name = name.rpartition("_")[0]


def _folder() -> Path | None:
    spec = importlib.util.find_spec("transformers")
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


def _text_of(name: str) -> str:
    """The text of a file of the library."""
    folder = _folder()
    return _text(folder / name) if folder else ""


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""
