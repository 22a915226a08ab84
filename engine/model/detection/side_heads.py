"""bge-m3's heads in files beside the model: sparse weights and token vectors, from the same rows as its embeddings."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from engine.model.detection.detected import Detected, Files
from engine.model.detection.vocabulary import Vocabulary
from engine.model.json_files import number_in
from engine.model.steps import Dense
from engine.model.tasks import TOKEN_WEIGHTS_FILE, LateInteraction, Task, TokenVectors, TokenWeights
from engine.model.weights import shapes_in
from engine.types import ModelError

SPARSE, VECTORS = TOKEN_WEIGHTS_FILE, "colbert_linear.safetensors"
PICKLED = ("sparse_linear.pt", "colbert_linear.pt")
_ARCHITECTURE = "xlm-roberta"
_UNUSED = ("cls_token", "eos_token", "pad_token", "unk_token")  # special tokens, which never have a weight


def side_heads(files: Files) -> Iterator[Detected]:
    """None or one. Raises ModelError for a wrong file."""
    folder = files.folder
    if files.config.get("model_type") != _ARCHITECTURE:
        return
    there = [name for name in (SPARSE, VECTORS) if (folder / name).is_file()]
    if not there:
        if any((folder / name).is_file() for name in PICKLED):
            yield Detected(task=Task.EMBED, source="no head that can be read", notes=(_not_read(folder),))
        return
    hidden_size = number_in(files.config, "hidden_size") or 0
    sparse = (_token_weights(files, hidden_size),) if SPARSE in there else ()
    vectors = (_token_vectors(folder, hidden_size),) if VECTORS in there else ()
    yield Detected(
        task=Task.EMBED,
        source=f"{' and '.join(there)} beside the model",
        heads=(*sparse, *vectors),
        late=LateInteraction(skips_first=True) if vectors else None,
    )


def _not_read(folder: Path) -> str:
    found = " and ".join(name for name in PICKLED if (folder / name).is_file())
    return (
        f"{found} can run code and so is not read: dense rows alone; "
        f"embedline convert {shlex.quote(str(folder))} OUT makes files of them that are"
    )


def _token_weights(files: Files, hidden_size: int) -> TokenWeights:
    file = files.folder / SPARSE
    shapes = shapes_in(file)
    _check(file, shapes, out_features=1, in_features=hidden_size)
    vocabulary = Vocabulary(files.backbone_folder)
    unused = {vocabulary.special(name) for name in _UNUSED}
    return TokenWeights(unused_ids=tuple(sorted(each for each in unused if each is not None)))


def _token_vectors(folder: Path, hidden_size: int) -> TokenVectors:
    shapes = shapes_in(folder / VECTORS)
    out_features = (shapes.get("weight") or (0,))[0]
    _check(folder / VECTORS, shapes, out_features=out_features, in_features=hidden_size)
    step = Dense(
        folder=VECTORS,
        in_features=hidden_size,
        out_features=out_features,
        has_bias="bias" in shapes,
        activation="Identity",
    )
    return TokenVectors(steps=(step,), dimensions=out_features)


def _check(file: Path, shapes: dict[str, tuple[int, ...]], *, out_features: int, in_features: int) -> None:
    wanted = (out_features, in_features)
    if not out_features or shapes.get("weight") != wanted or shapes.get("bias", wanted[:1]) != wanted[:1]:
        raise ModelError(f"{file} does not hold the weight and bias of a layer for rows of {in_features} numbers")
