"""Whether the tensorrt-llm engine can be right about a model's folder, and what it makes of token rows then.

It refuses whatever it would compute otherwise than transformers and sentence-transformers do. Reads JSON files alone:
the weights are looked at in engine.tensorrt_llm.checks.checkpoint.
"""

from engine.model.json_files import Json, read_object
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, SequenceScores, Task
from engine.selftest import sample_ids
from engine.tensorrt_llm.checks import backbone
from engine.tensorrt_llm.checks.families import family_of
from engine.tensorrt_llm.library.head import POOLINGS, Head, HeadKind
from engine.tensorrt_llm.library.trailing import pad_id_of
from engine.tensorrt_llm.refusal import refusal

_LAST = "last"
_TEXT = "The quick brown fox"
_SAMPLE_SEQLEN = 32  # tokens


def check_config(folder: ModelFolder) -> None:
    """Raises ModelError where the library would stumble over config.json, before it is told which class is meant."""
    if not folder.architectures:
        raise refusal("looks for architectures in config.json, which lacks the entry")


def head_of(folder: ModelFolder) -> Head:
    """Raises ModelError with one line where the engine can't serve the model, or would be wrong about it.

    `folder.max_seqlen` may have been shortened: a window that no sequence reaches is none.
    """
    family = family_of(folder.architecture)
    _check(folder)
    config = read_object(folder.path / "config.json")
    backbone.check(config, family.model_type, max_seqlen=folder.max_seqlen)
    is_causal = backbone.is_causal(config)
    match folder.heads:
        case () if folder.task is Task.EMBED:
            return _of_embeddings(folder, is_causal=is_causal)
        case (SequenceScores() as scores,):
            return _of_scores(folder, scores, is_causal=is_causal)
        case (AnswerScore() as answer,):
            return _of_answer(folder, answer, is_causal=is_causal)
    raise refusal(f"gives rows for texts, scores and labels, and the model is for {folder.task}")


def notes_of(folder: ModelFolder) -> tuple[str, ...]:
    """What an operator may want to know of a model that `head_of` takes, a line each."""
    config = read_object(folder.path / "config.json")
    window = backbone.window_of(config, folder.architecture)
    notes = [f"no sequence is longer than the window of {window} tokens"] if window is not None else []
    if folder.task is Task.EMBED and folder.poolings == (_LAST,):
        notes += _about_the_end(folder, config)
    return tuple(notes)


def _check(folder: ModelFolder) -> None:
    """What no head is served with."""
    if folder.is_static:
        raise refusal("has no use for static embeddings")
    if folder.tokenizer_folder:
        raise refusal(f"reads weights beside config.json, and the model's are in {folder.tokenizer_folder!r}")
    if not folder.include_prompt:
        raise refusal("pools all tokens, and the model leaves its prompt's out (include_prompt)")
    if folder.hides_tokens or folder.late is not None or folder.query_table is not None:
        raise refusal(f"gives rows for texts, scores and labels, and the model is for {folder.task}")


def _of_embeddings(folder: ModelFolder, *, is_causal: bool) -> Head:
    if len(folder.poolings) != 1 or folder.poolings[0] not in POOLINGS:
        raise refusal(f"pools by one of {', '.join(POOLINGS)}, and the model by {folder.pooling}")
    return Head(kind=HeadKind.EMBED, pooling=folder.poolings[0], is_causal=is_causal, num_outputs=folder.hidden_size)


def _of_scores(folder: ModelFolder, scores: SequenceScores, *, is_causal: bool) -> Head:
    if not is_causal and pad_id_of(folder) is not None:
        # See engine.tensorrt_llm.library.trailing: here, the tokens at the end would be seen.
        raise refusal("can't leave out padding tokens at the end of texts where is_causal of config.json is false")
    return Head(kind=HeadKind.SCORE, pooling=_LAST, is_causal=is_causal, num_outputs=len(scores.labels))


def _of_answer(folder: ModelFolder, answer: AnswerScore, *, is_causal: bool) -> Head:
    if max(answer.yes_id, answer.no_id or 0) >= folder.vocab_size:
        raise refusal(f"needs yes and no among the {folder.vocab_size} tokens of config.json's vocab_size")
    return Head(
        kind=HeadKind.ANSWER,
        pooling=_LAST,
        is_causal=is_causal,
        num_outputs=1,
        yes_id=answer.yes_id,
        no_id=answer.no_id,
    )


def _about_the_end(folder: ModelFolder, config: Json) -> list[str]:
    """The pooled token is whatever the tokenizer ends with, as in sentence-transformers."""
    named = config.get("eos_token_id")
    ends = [end for end in (named if isinstance(named, list) else [named]) if type(end) is int]
    if not ends or not (folder.path / "tokenizer.json").is_file():
        return []
    ids = sample_ids.of_texts(folder, [_TEXT], max_seqlen=_SAMPLE_SEQLEN)[0]
    if not ids.size or int(ids[-1]) in ends:
        return []
    return [
        f"the tokenizer ends texts with token {int(ids[-1])}, not with config.json's eos_token_id "
        f"({', '.join(map(str, ends))}): that row is pooled, as sentence-transformers does"
    ]
