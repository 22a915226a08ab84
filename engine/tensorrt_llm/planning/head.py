"""Decides from the JSON files what our model classes give: pooled rows, scores or answers.

A model is refused where the engine would compute something else than transformers and sentence-transformers do. The
result is plain data, as the library gives a model's class nothing but its configuration: it travels as an entry of it.
"""

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from engine.model.json_files import Json, read_object, read_optional
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, SequenceScores, Task
from engine.selftest import sample_ids
from engine.tensorrt_llm.planning import backbone
from engine.tensorrt_llm.planning.families import FAMILIES, family_of, refusal
from engine.types import ModelError

POOLINGS = ("last", "mean", "cls")
CONFIG_KEY = "embedline"  # the entry's name in the pretrained configuration


class HeadKind(enum.StrEnum):
    """The meaning of a row."""

    EMBED = "embed"  # the pooled row itself
    SCORE = "score"  # one raw score a label, by the `score` layer of …ForSequenceClassification
    ANSWER = "yes_no"  # the next token's raw score of yes minus that of no


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedHead:
    """A head, which `to_config` turns into JSON."""

    kind: HeadKind
    pooling: str  # which rows count: "last", "mean" or "cls"
    is_causal: bool  # False = every token of a sequence attends to every other
    num_outputs: int  # numbers in a row: the hidden size, the labels, or one
    yes_id: int | None = None  # vocabulary ids, only for ANSWER
    no_id: int | None = None  # None = only the raw score of yes
    padding_idx: int | None = None  # of RoBERTa's positions, see engine.rows.with_numpy; None = rotary angles

    def to_config(self) -> dict[str, Any]:
        """The head as JSON, for `from_config`."""
        return {**dataclasses.asdict(self), "kind": str(self.kind)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The head of `to_config`'s result, also after JSON."""
        return cls(**{**config, "kind": HeadKind(config["kind"])})


_LAST = "last"
_TEXT = "The quick brown fox"
_SAMPLE_SEQLEN = 32  # tokens


def head_of(folder: ModelFolder) -> PlannedHead:
    """The head of a model. Raises ModelError with one line if the engine can't serve it, or its rows would be wrong.

    `folder.max_seqlen` may have been shortened: a window that no sequence reaches is none.
    """
    family = family_of(folder.architecture)
    _check(folder)
    config = read_object(folder.path / "config.json")
    if family.is_encoder:
        return _encoder_head(folder, config)
    backbone.check(config, family.model_type, max_seqlen=folder.max_seqlen)
    is_causal = backbone.is_causal(config)
    match folder.heads:
        case () if folder.task is Task.EMBED:
            return _embedding_head(folder, is_causal=is_causal)
        case (SequenceScores() as scores,):
            return _score_head(folder, scores, is_causal=is_causal)
        case (AnswerScore() as answer,):
            return _answer_head(folder, answer, is_causal=is_causal)
    raise _other_task(folder)


def _encoder_head(folder: ModelFolder, config: Json) -> PlannedHead:
    padding_idx = backbone.padding_idx_of(config, max_seqlen=folder.max_seqlen)
    match folder.heads:
        case () if folder.task is Task.EMBED:
            return dataclasses.replace(_embedding_head(folder, is_causal=False), padding_idx=padding_idx)
        case (SequenceScores() as scores,):
            return PlannedHead(
                kind=HeadKind.SCORE,
                pooling="cls",
                is_causal=False,
                num_outputs=len(scores.labels),
                padding_idx=padding_idx,
            )
    raise _other_task(folder)


def _other_task(folder: ModelFolder) -> ModelError:
    return refusal(f"gives rows for texts, scores and labels, and the model is for {folder.task}")


def notes_of(folder: ModelFolder) -> tuple[str, ...]:
    """Notes for operators on a model that `head_of` accepts, a line each."""
    config = read_object(folder.path / "config.json")
    window = backbone.window_of(config, folder.architecture)
    notes = [f"no sequence is longer than the window of {window} tokens"] if window is not None else []
    if folder.task is Task.EMBED and folder.poolings == (_LAST,):
        notes += _notes_on_last_token(folder, config)
    return tuple(notes)


def _check(folder: ModelFolder) -> None:
    """Raises ModelError for what no head supports."""
    if folder.is_static:
        raise refusal("computes no static embeddings")
    if folder.tokenizer_folder:
        raise refusal(f"reads weights beside config.json, and the model's are in {folder.tokenizer_folder!r}")
    if not folder.include_prompt:
        raise refusal("pools all tokens, but the model leaves out those of its prompt (include_prompt)")
    if folder.hides_tokens or folder.late is not None or folder.query_table is not None:
        raise _other_task(folder)


def _embedding_head(folder: ModelFolder, *, is_causal: bool) -> PlannedHead:
    if len(folder.poolings) != 1 or folder.poolings[0] not in POOLINGS:
        raise refusal(f"pools by one of {', '.join(POOLINGS)}, and the model by {folder.pooling}")
    return PlannedHead(
        kind=HeadKind.EMBED, pooling=folder.poolings[0], is_causal=is_causal, num_outputs=folder.hidden_size
    )


def _score_head(folder: ModelFolder, scores: SequenceScores, *, is_causal: bool) -> PlannedHead:
    if not is_causal and pad_id_of(folder) is not None:
        # Without a causal mask the tokens before them would see the padding tokens at the end.
        raise refusal("can't leave out padding tokens at the end of texts where is_causal of config.json is false")
    return PlannedHead(kind=HeadKind.SCORE, pooling=_LAST, is_causal=is_causal, num_outputs=len(scores.labels))


def _answer_head(folder: ModelFolder, answer: AnswerScore, *, is_causal: bool) -> PlannedHead:
    if max(answer.yes_id, answer.no_id or 0) >= folder.vocab_size:
        raise refusal(f"needs yes and no among the {folder.vocab_size} tokens of config.json's vocab_size")
    return PlannedHead(
        kind=HeadKind.ANSWER,
        pooling=_LAST,
        is_causal=is_causal,
        num_outputs=1,
        yes_id=answer.yes_id,
        no_id=answer.no_id,
    )


def _notes_on_last_token(folder: ModelFolder, config: Json) -> list[str]:
    """The pooled token is the tokenizer's last one, as in sentence-transformers."""
    named = config.get("eos_token_id")
    ends = [end for end in (named if isinstance(named, list) else [named]) if type(end) is int]
    if not ends or not (folder.path / "tokenizer.json").is_file():
        return []
    if read_optional(folder.path / "tokenizer_config.json").get("add_eos_token") is True:
        return []
    ids = sample_ids.of_texts(folder, [_TEXT], max_seqlen=_SAMPLE_SEQLEN)[0]
    if not ids.size or int(ids[-1]) in ends:
        return []
    return [
        f"the tokenizer ends texts with token {int(ids[-1])}, not with config.json's eos_token_id "
        f"({', '.join(map(str, ends))}): that row is pooled, as sentence-transformers does"
    ]


def pad_id_of(folder: ModelFolder) -> int | None:
    """The token that is removed from the end of sequences; None = none is, as for all but causal classifiers."""
    if FAMILIES[folder.architecture].is_encoder or not any(isinstance(head, SequenceScores) for head in folder.heads):
        return None
    pad_id = read_object(folder.path / "config.json").get("pad_token_id")
    return pad_id if type(pad_id) is int else None


def without_trailing_padding(token_ids: list[int], pad_id: int | None) -> list[int]:
    """The token ids of one sequence without the padding tokens at their end, but at least the first.

    transformers' classifiers take the last token that is not the padding token, wherever it comes from, or the first
    where there is no other; the library takes the last token. In a causal model no token sees those after it, so the
    scores are the same once the padding tokens at the end are left out.
    """
    end = len(token_ids)
    while pad_id is not None and end > 1 and token_ids[end - 1] == pad_id:
        end -= 1
    return token_ids[:end]
