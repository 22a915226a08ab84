"""What gives the rows of tokens: a transformer, or a static table with a row for each token of the vocabulary."""

from dataclasses import dataclass

from engine.model.arrays import weights_files
from engine.model.detection.architecture import architecture_of
from engine.model.detection.chains import Chain
from engine.model.detection.detected import Files
from engine.model.detection.present import check_weights
from engine.model.detection.seqlen import length_of, padding_idx_of
from engine.model.detection.side_heads import shapes_in
from engine.model.json_files import Json, number_in
from engine.types import ModelError

_TABLES = ("embedding.weight", "embeddings")  # as sentence-transformers and model2vec name it
_STATIC_SEQLEN = 32768  # tokens; such a model has no limit of its own, a request needs one


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """See ModelFolder's fields of the same names."""

    architecture: str
    hidden_size: int
    vocab_size: int
    max_seqlen: int  # tokens
    max_seqlen_source: str
    padding_idx: int | None = None
    notes: tuple[str, ...] = ()


def read_backbone(files: Files) -> Backbone:
    """Raises ModelError where it can't be served, or its weights are not there."""
    return _static(files) if files.chain is Chain.STATIC else _transformer(files)


def _transformer(files: Files) -> Backbone:
    folder, config = files.backbone_folder, files.config
    architecture, auto_map_note = architecture_of(folder, config, known_classes=files.known_classes)
    if files.needs_weights:
        check_weights(folder)
        for file in weights_files(files.folder, files.sentence.steps):
            check_weights(file.parent)
    padding_idx = padding_idx_of(architecture, config)
    length = length_of(folder, config, files.sentence, padding_idx=padding_idx)
    return Backbone(
        architecture=architecture,
        hidden_size=_needed_number(config, "hidden_size", "dim", "n_embd", "d_model"),
        vocab_size=_needed_number(config, "vocab_size"),
        max_seqlen=length.max_seqlen,
        max_seqlen_source=length.source,
        padding_idx=padding_idx,
        notes=tuple(filter(None, (auto_map_note, files.sentence.note, length.note))),
    )


def _static(files: Files) -> Backbone:
    where = files.backbone_folder
    check_weights(where)
    shapes = shapes_in(where / "model.safetensors")
    table = next((shapes[name] for name in _TABLES if name in shapes), ())
    mapping = shapes.get("mapping", table[:1])  # model2vec may give several tokens the same row
    if len(table) != 2 or len(mapping) != 1:
        raise ModelError(f"{where}/model.safetensors has no table of embeddings ({' or '.join(_TABLES)})")
    asked = number_in(files.config, "seq_length") or _STATIC_SEQLEN
    return Backbone(
        architecture=str(files.config.get("model_type") or "static"),
        hidden_size=table[1],
        vocab_size=mapping[0],
        max_seqlen=min(asked, _STATIC_SEQLEN),
        max_seqlen_source="config.json" if asked < _STATIC_SEQLEN else "no file: static embeddings have no limit",
    )


def _needed_number(config: Json, *keys: str) -> int:
    number = number_in(config, *keys)
    if number is None:
        raise ModelError(f"config.json has no {keys[0]}")
    return number
