"""How long a sequence a model takes, and who says so."""

from dataclasses import dataclass
from pathlib import Path

from engine.model.json_files import Json, number_in, object_in, read_optional
from engine.model.sentence_files import SentenceFiles
from engine.types import ModelError

# They number positions from padding_idx + 1 and lose as many of them.
# fmt: off
_POSITIONS_AFTER_PADDING = frozenset((
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
))
# fmt: on
_WHERE_NOT_SAID = 512
_UNLIMITED = 10**9  # tokenizer_config.json writes numbers such as 1e30 for it
_LONG_ROPE = "longrope is used up to where its frequencies change"


@dataclass(frozen=True, slots=True)
class Length:
    """Of a sequence at most."""

    max_seqlen: int  # tokens
    source: str
    note: str  # where that is fewer than the model's files ask for


def padding_idx_of(architecture: str, config: Json) -> int | None:
    """Positions are numbered from this + 1; None = from 0."""
    if architecture not in _POSITIONS_AFTER_PADDING:
        return None
    value = config.get("pad_token_id")
    return value if isinstance(value, int) else 1


def length_of(folder: Path, config: Json, files: SentenceFiles, *, padding_idx: int | None) -> Length:
    """Raises ModelError where no position is left for a token."""
    limit, why = _num_positions(config, padding_idx)
    asked, source = files.max_seqlen, files.max_seqlen_source
    if asked is None:
        source = "tokenizer_config.json"
        asked = number_in(read_optional(folder / source), "model_max_length") or _UNLIMITED
    if limit < 1:
        raise ModelError("config.json leaves no position for a token (max_position_embeddings)")
    if min(asked, limit) >= _UNLIMITED:
        note = f"no length is given anywhere: {_WHERE_NOT_SAID} tokens"
        return Length(_WHERE_NOT_SAID, "no file", note)
    note = f"{why}: {limit} tokens" if limit < asked < _UNLIMITED or why == _LONG_ROPE else ""
    return Length(min(asked, limit), source if asked <= limit else "config.json", note)


def _num_positions(config: Json, padding_idx: int | None) -> tuple[int, str]:
    """How long a sequence the architecture takes, and what limits it."""
    positions = number_in(config, "max_position_embeddings", "n_positions", "max_seq_len") or _UNLIMITED
    rope = object_in(config, "rope_parameters") or object_in(config, "rope_scaling")
    if rope.get("rope_type", rope.get("type")) == "longrope":
        # Beyond it, one long sequence would change the frequencies, and so the rows, of all others in its batch.
        short = number_in({**config, **rope}, "original_max_position_embeddings")
        if short is not None:
            return min(short, positions), _LONG_ROPE
    lost = 0 if padding_idx is None else padding_idx + 1
    return positions - lost, "the architecture has no more positions"
