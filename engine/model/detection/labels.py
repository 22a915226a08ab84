"""The labels of a classifier, in the order of its scores, and whether its head has as many rows."""

from pathlib import Path

from engine.model.json_files import Json, number_in, object_in
from engine.model.weights import header_of, weight_files
from engine.types import ModelError

# what transformers' classes call the last layer of their heads
_LAST_LAYERS = ("classifier.weight", "classifier.out_proj.weight", "score.weight")
_DEFAULT = 2  # labels, where config.json says nothing, as in transformers


def labels_of(config: Json) -> tuple[str, ...]:
    """Raises ModelError for a label map that is not of the right size."""
    num_labels = number_in(config, "num_labels")
    named = object_in(config, "id2label")
    if not named:
        return tuple(f"LABEL_{index}" for index in range(num_labels or _DEFAULT))
    if set(named) != {str(index) for index in range(len(named))}:
        raise ModelError(f"id2label in config.json does not number its {len(named)} labels from 0 on")
    if num_labels not in (None, len(named)):
        raise ModelError(f"id2label in config.json has {len(named)} labels, and num_labels is {num_labels}")
    return tuple(str(named[str(index)]) for index in range(len(named)))


def check_head(folder: Path, num_labels: int) -> None:
    """Raises ModelError where the head in the weights gives another number of scores, or a header can't be read.

    A head whose layers have other names is left to the engine.
    """
    for file in weight_files(folder):
        try:
            tensors = header_of(file).tensors
            shapes = {name: tensors[name]["shape"] for name in _LAST_LAYERS if name in tensors}
            rows = {name: int(shape[0]) for name, shape in shapes.items()}
        except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
            raise ModelError(f"{file} is not a safetensors file") from error
        for name, found in rows.items():
            if found != num_labels:
                raise ModelError(
                    f"config.json names {num_labels} labels, and {name!r} in {file.name} gives {found} scores"
                )
