"""A classifier's labels, in the order of its scores, and the activation of its raw scores."""

from pathlib import Path

from engine.model.detection.chains import Chain
from engine.model.detection.detected import Files
from engine.model.json_files import Json, number_in, object_in, read_optional
from engine.model.sentence_files import CONFIG
from engine.model.tasks import Activation
from engine.model.weights import shapes_in, weight_files
from engine.types import ModelError

# names of the last layer of heads in transformers' classes
_LAST_LAYERS = ("classifier.weight", "classifier.out_proj.weight", "score.weight")
_DEFAULT = 2  # labels, if config.json gives none, as in transformers
_TORCH = {  # sentence-transformers' names
    "torch.nn.modules.linear.Identity": Activation.IDENTITY,
    "torch.nn.modules.activation.Sigmoid": Activation.SIGMOID,
    "torch.nn.modules.activation.Softmax": Activation.SOFTMAX,
}
_PROBLEMS = {
    "multi_label_classification": Activation.SIGMOID,
    "regression": Activation.IDENTITY,
    "single_label_classification": None,
}


def labels_of(config: Json) -> tuple[str, ...]:
    """The labels. Raises ModelError for a label map of the wrong size."""
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
    """Raises ModelError if the head in the weights gives another number of scores, or a header can't be read.

    Heads with other names of layers are not checked here.
    """
    for file in weight_files(folder):
        for name, shape in shapes_in(file).items():
            if name in _LAST_LAYERS and (found := shape[0] if shape else 0) != num_labels:
                raise ModelError(
                    f"config.json names {num_labels} labels, and {name!r} in {file.name} gives {found} scores"
                )


def activation_of(files: Files, num_labels: int) -> tuple[Activation, tuple[str, ...]]:
    """The activation, and a note if the files name one in the model's own code. Raises ModelError."""
    is_cross_encoder = files.chain in (Chain.SCORES, Chain.ANSWER)
    cross_encoder = read_optional(files.folder / CONFIG) if is_cross_encoder else {}
    named = (
        cross_encoder.get("activation_fn")
        or object_in(files.config, "sentence_transformers").get("activation_fn")
        or files.config.get("sbert_ce_default_activation_function")
    )
    if named is not None and str(named).startswith("torch."):
        short = {known.rpartition(".")[2]: activation for known, activation in _TORCH.items()}
        if (last := str(named).rpartition(".")[2]) not in short:
            raise ModelError(f"the model's files ask for the activation {named!r}; supported are {', '.join(_TORCH)}")
        return short[last], ()
    notes = ("the activation that its files name is code, which is never run",) if named is not None else ()
    problem = files.config.get("problem_type")
    if problem is not None and (not isinstance(problem, str) or problem not in _PROBLEMS):
        raise ModelError("transformers does not know the problem_type in config.json")
    by_number = Activation.SIGMOID if num_labels == 1 else Activation.SOFTMAX
    return (_PROBLEMS[problem] if problem else None) or by_number, notes
