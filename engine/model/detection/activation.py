"""What makes scores of raw ones, by the model's own files."""

from engine.model.detection.chains import Chain
from engine.model.detection.detected import Files
from engine.model.json_files import object_in, read_optional
from engine.model.sentence_files import CONFIG
from engine.model.tasks import Activation
from engine.types import ModelError

_TORCH = {  # as sentence-transformers writes them
    "torch.nn.modules.linear.Identity": Activation.IDENTITY,
    "torch.nn.modules.activation.Sigmoid": Activation.SIGMOID,
    "torch.nn.modules.activation.Softmax": Activation.SOFTMAX,
}
_PROBLEMS = {
    "multi_label_classification": Activation.SIGMOID,
    "regression": Activation.IDENTITY,
    "single_label_classification": None,
}


def activation_of(files: Files, num_labels: int) -> tuple[Activation, tuple[str, ...]]:
    """And a note where the files name one that is the model's own code. Raises ModelError."""
    is_cross_encoder = files.chain in (Chain.SCORES, Chain.ANSWER)
    told = read_optional(files.folder / CONFIG) if is_cross_encoder else {}
    named = (
        told.get("activation_fn")
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
        raise ModelError("problem_type in config.json is none that transformers knows")
    by_number = Activation.SIGMOID if num_labels == 1 else Activation.SOFTMAX
    return (_PROBLEMS[problem] if problem else None) or by_number, notes
