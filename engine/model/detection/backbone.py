"""The part of a model that gives the rows of tokens, its longest sequence, and the lengths at which its rows change.

It is a transformer, or a static table with a row for each token of the vocabulary. config.json also says how many
tokens a text needs to show a wrong window or wrong frequencies.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from engine.model.detection.config import WIDTHS
from engine.model.detection.detected import Files
from engine.model.json_files import Json, needed_number, number_in, object_in, read_optional
from engine.model.modules import Chain
from engine.model.sentence_files import read_length
from engine.model.weights import check_weights, shapes_in, step_files
from engine.types import ModelError

_TABLES = ("embedding.weight", "embeddings")  # the names of sentence-transformers and model2vec
_STATIC_SEQLEN = 32768  # tokens; such a model has no limit, but a request needs one
# These number positions from padding_idx + 1, so they have padding_idx + 1 fewer.
# fmt: off
_POSITIONS_AFTER_PADDING = frozenset((
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-flash", "xlm-roberta-xl", "xmod",
))
# fmt: on
# Numbers of a row after the last layer, where config.json does not say them (transformers' classes).
_PROJECTED = dict.fromkeys(("embedding_gemma2", "embedding_gemma2_text"), 768)
# Tokens that the authors' card gives, where positions are numbered by angles, which end nowhere.
_BY_CARD = dict.fromkeys(_PROJECTED, 8192)
_PADDING_IS_1 = frozenset(("mpnet",))  # whatever pad_token_id is
_MODEL2VEC, _MODEL2VEC_LENGTH = "model2vec", 512  # tokens, where config.json does not say
_WHERE_NOT_SAID = 512
_UNLIMITED = 10**9  # tokenizer_config.json has numbers such as 1e30 for it
_OF_CARD = "its card gives texts no more"
_ROPE_CHANGES = "longrope is used up to where its frequencies change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """See ModelFolder's fields of the same names."""

    architecture: str
    hidden_size: int
    vocab_size: int
    max_seqlen: int  # tokens
    max_seqlen_source: str
    num_positions: int | None = None  # tokens, that the architecture has positions for; None = any number
    padding_idx: int | None = None
    notes: tuple[str, ...] = ()


def read_backbone(files: Files) -> Backbone:
    """The transformer inside the folder. Raises ModelError if it can't be served, or weights are missing."""
    return _static(files) if files.chain is Chain.STATIC else _transformer(files)


def _transformer(files: Files) -> Backbone:
    folder, config = files.backbone_folder, files.config
    architecture = str(config["model_type"])
    if files.needs_weights:
        check_weights(folder)
        for file in step_files(files.folder, files.sentence.steps):
            check_weights(file.parent)
    padding_idx = padding_idx_of(architecture, config)
    limit, why = _num_positions(config, padding_idx)
    max_seqlen, source, note = _longest(files, limit, why)
    return Backbone(
        architecture=architecture,
        hidden_size=_row_size(config),
        vocab_size=needed_number(config, "vocab_size", "n_words"),
        max_seqlen=max_seqlen,
        max_seqlen_source=source,
        num_positions=limit if limit < _UNLIMITED else None,
        padding_idx=padding_idx,
        notes=(*files.served.notes, *filter(None, (files.sentence.note, note))),
    )


def _row_size(config: Json) -> int:
    """Numbers of a token's row. Some architectures project it last."""
    if config["model_type"] in _PROJECTED:
        return number_in(config, "embedding_dim") or _PROJECTED[config["model_type"]]
    return needed_number(config, *WIDTHS)


def _static(files: Files) -> Backbone:
    where = files.backbone_folder
    check_weights(where)
    shapes = shapes_in(where / "model.safetensors")
    table = next((shapes[name] for name in _TABLES if name in shapes), ())
    mapping = shapes.get("mapping", table[:1])  # model2vec may give several tokens the same row
    if len(table) != 2 or len(mapping) != 1:
        raise ModelError(f"{where}/model.safetensors has no table of embeddings ({' or '.join(_TABLES)})")
    tokenizer = read_optional(where / "tokenizer.json")
    lengths = {"config.json": number_in(files.config, "seq_length"), "tokenizer.json": _truncated_at(where, tokenizer)}
    asked = {source: length for source, length in lengths.items() if length is not None and length < _STATIC_SEQLEN}
    source = min(asked, key=lambda name: asked[name], default="")
    return Backbone(
        architecture=str(files.config.get("model_type") or "static"),
        hidden_size=table[1],
        vocab_size=mapping[0],
        max_seqlen=asked.get(source, _STATIC_SEQLEN),
        max_seqlen_source=source or "no file: static embeddings have no limit",
        notes=(_of_its_own_code(files.config, tokenizer),) if files.config.get("model_type") == _MODEL2VEC else (),
    )


def _of_its_own_code(config: Json, tokenizer: Json) -> str:
    """What model2vec 0.10 does otherwise with a text (model.py: `_encode_dispatch` and `tokenize`)."""
    max_length = config.get("max_length", _MODEL2VEC_LENGTH)
    vocabulary = object_in(tokenizer, "model").get("vocab") or ()  # token -> id, or pieces with their scores
    tokens = {str(entry[0] if isinstance(entry, list) and entry else entry) for entry in vocabulary}
    added = tokenizer.get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        tokens |= {str(entry["content"])} if isinstance(entry, dict) and "content" in entry else set()
    note = "unknown tokens count in the mean, as in sentence-transformers; model2vec's own code leaves them out"
    if type(max_length) is not int or not tokens:
        return note
    num_characters = max_length * int(median(map(len, tokens)))
    return f"{note}, and cuts a text to {num_characters} characters and then to {max_length} tokens"


def _truncated_at(folder: Path, tokenizer: Json) -> int | None:
    """The tokens at which tokenizer.json cuts texts, as sentence-transformers leaves it for static embeddings alone.

    Raises ModelError where it cuts their beginnings.
    """
    truncation = object_in(tokenizer, "truncation")
    if truncation.get("direction", "Right") != "Right":
        raise ModelError(f"{folder}/tokenizer.json truncates texts on the left (direction); only Right is supported")
    return number_in(truncation, "max_length", file="tokenizer.json")


def padding_idx_of(architecture: str, config: Json) -> int | None:
    """Positions are numbered from this + 1; None = from 0. Raises ModelError if config.json says that there is none."""
    if architecture not in _POSITIONS_AFTER_PADDING or config.get("position_embedding_type") == "rotary":
        return None
    if architecture in _PADDING_IS_1:
        return 1
    value = config.get("pad_token_id", 1)
    if type(value) is not int:
        raise ModelError(
            f"'pad_token_id' in config.json is no token id, and {architecture} numbers positions from it; set the id "
            "that the tokenizer pads with"
        )
    return value


def _longest(files: Files, limit: int, why: str) -> tuple[int, str, str]:
    """How many tokens a text may have, who says so, and a note if that is less than the model's files say. Raises
    ModelError if no position is left for one."""
    said, source = read_length(files.backbone_folder, files.sentence)
    asked = said or _UNLIMITED
    if limit < 1:
        raise ModelError("config.json leaves no position for a token (max_position_embeddings)")
    if min(asked, limit) >= _UNLIMITED:
        return _WHERE_NOT_SAID, "no file", f"no length is given anywhere: {_WHERE_NOT_SAID} tokens"
    note = f"{why}: {limit} tokens" if limit < asked < _UNLIMITED or why == _ROPE_CHANGES else ""
    cut_by = "its card" if why == _OF_CARD else "config.json"
    return min(asked, limit), source if asked <= limit else cut_by, note


def _num_positions(config: Json, padding_idx: int | None) -> tuple[int, str]:
    """The longest sequence of the architecture, and what limits it."""
    positions = number_in(config, *POSITIONS) or _UNLIMITED
    # Beyond it, one long sequence would change the frequencies, and so the rows, of all others in its batch.
    short = [length for kind, length in lengths_of_rope(config) if kind == LONG_ROPE]
    if short:
        return min(*short, positions), _ROPE_CHANGES
    if (by_card := _BY_CARD.get(config["model_type"], positions)) < positions:
        return by_card, _OF_CARD
    lost = 0 if padding_idx is None else padding_idx + 1
    return positions - lost, "the architecture has no more positions"


_MODERNBERT_WINDOW = 128  # the default of local_attention (transformers, configuration_modernbert.py)
_WINDOW = re.compile(r"(window|window_size|attention_chunk_size)$")  # keys: sliding_window, attention_window_size, …
_SPARSE, _BLOCK, _NUM_RANDOM = ("big_bird", "bigbird_pegasus"), 64, 3  # and defaults of block_size, num_random_blocks
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")  # keys of how many the architecture has
LONG_ROPE = "longrope"
_LENGTH_DEPENDENT = ("dynamic", LONG_ROPE)  # kinds of rope whose frequencies depend on the length
_ORIGINAL = "original_max_position_embeddings"
_DEFAULT_ORIGINAL = {"phi3": 4096}  # of its class, where config.json does not say it outside of rope_parameters


def telling_lengths(config: Json, max_seqlen: int) -> tuple[int, ...]:
    """Ascending; none if nothing changes within max_seqlen tokens. config: ModelFolder.config. Raises ModelError.

    A quarter beyond a window, so that more than a few tokens lose sight of the first ones.
    """
    windows = (window for window in _windows(config) if window < max_seqlen)
    lengths = {window + window // 4 + 2 for window in windows}
    lengths |= {length for _, first in lengths_of_rope(config) for length in (first, first + 2)}
    sparse_from = _num_dense(config)
    lengths |= {sparse_from + 1} if sparse_from is not None and sparse_from < max_seqlen else set()
    return tuple(sorted({min(length, max_seqlen) for length in lengths}))


def _windows(config: Json) -> Iterator[int]:
    """A token sees others up to about this many tokens away in some layers."""
    if config.get("model_type") == "modernbert":
        yield (number_in(config, "local_attention") or _MODERNBERT_WINDOW) // 2  # to either side
        return
    kinds = config.get("layer_types")
    has_none = isinstance(kinds, list) and not {*map(str, kinds)} - {"full_attention"}
    if has_none or config.get("use_sliding_window") is False:
        return
    for key in filter(_WINDOW.search, config):
        window = config[key]
        if type(window) is int and window > 0:
            yield window // 2 + 1 if config.get("use_bidirectional_attention") else window


def _num_dense(config: Json) -> int | None:
    """The tokens up to which BigBird's attention is not sparse; None = it never is."""
    if config.get("model_type") not in _SPARSE or config.get("attention_type") == "original_full":
        return None
    num_random = config.get("num_random_blocks", _NUM_RANDOM)
    return (5 + 2 * num_random) * (number_in(config, "block_size") or _BLOCK) if type(num_random) is int else None


def lengths_of_rope(config: Json) -> Iterator[tuple[str, int]]:
    """The kinds of rope whose frequencies depend on the length, of all layers or of each type, and the most tokens that
    have the first frequencies. Raises ModelError where config.json leaves that to the class."""
    whole = object_in(config, "rope_parameters") or object_in(config, "rope_scaling")
    for rope in (whole, *(each for each in whole.values() if isinstance(each, dict))):
        kind = rope.get("rope_type", rope.get("type"))
        if kind in _LENGTH_DEPENDENT:
            originals = _originals(config, rope) if kind == LONG_ROPE else []
            first = min(originals, default=number_in(config, *POSITIONS))
            if first is None:
                raise ModelError(f"rope_type {kind!r} in config.json needs {POSITIONS[0]}, which it has not")
            yield kind, first


def _originals(config: Json, rope: Json) -> list[int]:
    """Inside and outside; which of them counts depends on the class."""
    outside = number_in(config, _ORIGINAL) or _DEFAULT_ORIGINAL.get(str(config.get("model_type")))
    return [length for length in (outside, number_in(rope, _ORIGINAL)) if length is not None]
