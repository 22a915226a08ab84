"""What a model folder's JSON files say about the model, read in milliseconds and without torch or transformers.

Knows nothing of the weights but the names of their files.
"""

import importlib.util
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from engine.head.arrays import weights_files
from engine.head.steps import Step, output_size
from engine.model_json import Json, number_in, object_in, read_object, read_optional
from engine.sentence_files import SentenceFiles, read_modules, read_prompts
from engine.tasks import (
    Activation,
    AnswerScore,
    Head,
    LateInteraction,
    PairTemplate,
    SequenceScores,
    Task,
    TokenScores,
    TokenVectors,
    TokenWeights,
    VocabularyWeights,
)
from engine.types import ModelError, OutputKind

# They number positions from padding_idx + 1 and lose as many of them.
# fmt: off
_POSITIONS_AFTER_PADDING = frozenset((
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
))
# fmt: on
_MAX_SEQLEN_WHERE_NOT_SAID = 512
_UNLIMITED = 10**9  # tokenizer_config.json writes numbers such as 1e30 for it
_LONG_ROPE = "longrope is used up to where its frequencies change"
_UNREAD_WEIGHTS = frozenset((".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"))


_OUTPUTS: dict[type[Head], OutputKind] = {
    SequenceScores: OutputKind.LOGITS,
    AnswerScore: OutputKind.LOGITS,
    TokenScores: OutputKind.TOKEN_LOGITS,
    VocabularyWeights: OutputKind.SPARSE,
    TokenWeights: OutputKind.SPARSE,
    TokenVectors: OutputKind.MULTI_VECTOR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model folder as far as its JSON files tell."""

    path: Path
    architecture: str  # model_type of config.json
    architectures: tuple[str, ...]  # class names in config.json, for information
    hidden_size: int
    vocab_size: int
    max_seqlen: int  # tokens, special ones included
    max_seqlen_source: str  # the file or flag that says so
    padding_idx: int | None  # positions are numbered from padding_idx + 1 (RoBERTa and its kin); None = from 0
    do_lower_case: bool  # lower-case the text before tokenizing, whatever the tokenizer does itself
    poolings: tuple[str, ...]  # "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "last"; joined in order
    pooling_source: str  # the file or flag that says so
    steps: tuple[Step, ...]  # what is done with the pooled row
    normalize: bool  # and in the end a Normalize module
    prompts: dict[str, str]  # by name, to be put before a text
    default_prompt_name: str | None  # a key of prompts
    include_prompt: bool  # False = prompts would have to be left out of the pooling, so none may be given
    notes: tuple[str, ...] = ()  # what was decided and why, a line each
    task: Task = Task.EMBED
    task_source: str = "no head"  # the file or flag that says so
    heads: tuple[Head, ...] = ()  # beside or instead of the pooling
    activation: Activation = Activation.IDENTITY  # what makes scores of raw ones
    template: PairTemplate | None = None  # of a generative reranker
    late: LateInteraction | None = None  # of a model that gives rows for it

    @property
    def outputs(self) -> OutputKind:
        """What the model can give."""
        found = OutputKind.POOLED | OutputKind.TOKENS if self.task is Task.EMBED else OutputKind(0)
        for head in self.heads:
            found |= _OUTPUTS[type(head)]
        return found

    @property
    def labels(self) -> tuple[str, ...]:
        """Of what is scored, in the order of the scores."""
        scored = [head.labels for head in self.heads if isinstance(head, SequenceScores | TokenScores)]
        return scored[0] if scored else ()

    @property
    def pooling(self) -> str:
        """For people: joined ones with a + between them."""
        return "+".join(self.poolings)

    @property
    def dimensions(self) -> int:
        """Of the row that is handed out."""
        return output_size(self.steps, self.hidden_size * len(self.poolings))

    @property
    def default_prompt(self) -> str:
        """What goes before each text where nobody names a prompt; mostly empty."""
        return "" if self.default_prompt_name is None else self.prompts[self.default_prompt_name]


def read(path: Path | str, *, pooling: str | None = None, needs_weights: bool = True) -> ModelFolder:
    """Read a folder; `pooling` (cls, mean, last-token) overrules its files.

    Raises ModelError with one line where the model can't be served.
    """
    folder = Path(path)
    config = _config(folder)
    architecture, auto_map_note = _architecture(folder, config)
    files = read_modules(folder, config, pooling=pooling)
    prompts, default_prompt_name = read_prompts(folder, include_prompt=files.include_prompt)
    if needs_weights:
        _check_weights(folder)
        for file in weights_files(folder, files.steps):
            _check_weights(file.parent)
    padding_idx = _padding_idx(config) if architecture in _POSITIONS_AFTER_PADDING else None
    length = _length(folder, config, files, padding_idx=padding_idx)
    hidden_size = _needed_number(config, "hidden_size", "dim", "n_embd", "d_model")
    output_size(files.steps, hidden_size * len(files.poolings))  # raises where they do not fit each other
    return ModelFolder(
        path=folder,
        architecture=architecture,
        architectures=tuple(map(str, config.get("architectures") or ())),
        hidden_size=hidden_size,
        vocab_size=_needed_number(config, "vocab_size"),
        max_seqlen=length.max_seqlen,
        max_seqlen_source=length.source,
        padding_idx=padding_idx,
        do_lower_case=files.do_lower_case,
        poolings=files.poolings,
        pooling_source=files.pooling_source,
        steps=files.steps,
        normalize=files.normalize,
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        include_prompt=files.include_prompt,
        notes=tuple(filter(None, (auto_map_note, files.note, _steps_note(files.steps), length.note))),
    )


def _config(folder: Path) -> Json:
    """config.json, with the text model's part of it on top."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json, so it is not a model folder")
    if (folder / "adapter_config.json").is_file():
        raise ModelError(f"{folder} holds an adapter (adapter_config.json); merge it into its model to serve it")
    config = read_object(folder / "config.json")
    if config.get("is_encoder_decoder"):
        raise ModelError("config.json describes an encoder-decoder model, which is not supported")
    return {**object_in(config, "text_config"), **config}


def _architecture(folder: Path, config: Json) -> tuple[str, str]:
    """The architecture, and a note where its folder brings code for it, which is never run."""
    architecture = config.get("model_type")
    if not isinstance(architecture, str) or not architecture:
        raise ModelError("config.json has no model_type, so the architecture is unknown")
    files = [name for name in ("config.json", "tokenizer_config.json") if "auto_map" in read_optional(folder / name)]
    known = _known_architectures()
    if known and architecture not in known:
        code = ", and the code that auto_map names is never run" if files else ""
        raise ModelError(f"the installed transformers does not know the architecture {architecture!r}{code}")
    return architecture, f"auto_map in {' and '.join(files)} is not followed" if files else ""


def _known_architectures() -> frozenset[str]:
    """The model_type of each base model in the installed transformers; empty where that can't be told.

    Read from its source, for importing it takes seconds.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    source = Path(spec.submodule_search_locations[0], "models", "auto", "modeling_auto.py")
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    _, _, rest = text.partition("\nMODEL_MAPPING_NAMES = OrderedDict(")
    table, _, _ = rest.partition("\n)\n")
    return frozenset(re.findall(r'\("([^"]+)", ["(]', table))


def _check_weights(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return
    if index.is_file():
        shards = {str(shard) for shard in object_in(read_object(index), "weight_map").values()}
        missing = sorted(shard for shard in shards if not (folder / shard).is_file())
        if missing:
            raise ModelError(f"{folder} lacks {missing[0]!r}, which model.safetensors.index.json names")
        return
    unread = sorted(file.name for file in folder.iterdir() if file.suffix in _UNREAD_WEIGHTS)
    found = f"; {', '.join(unread[:3])} is not read, for such files can run code" if unread else ""
    raise ModelError(
        f"{folder} has no model.safetensors, and weights are read from *.safetensors alone{found}{_way_out(folder)}"
    )


def _way_out(folder: Path) -> str:
    """What makes safetensors of what is there. Of a model on the hub nothing but safetensors is to be seen here."""
    if any((folder / name).is_file() for name in ("pytorch_model.bin", "pytorch_model.bin.index.json")):
        return f": embedline convert {shlex.quote(str(folder))} OUT"
    return "; embedline convert MODEL OUT makes them of pytorch_model.bin, where the model has that"


def _steps_note(steps: tuple[Step, ...]) -> str:
    return f"after the pooling: {', then '.join(map(str, steps))}" if steps else ""


def _padding_idx(config: Json) -> int:
    value = config.get("pad_token_id")
    return value if isinstance(value, int) else 1


def _needed_number(config: Json, *keys: str) -> int:
    number = number_in(config, *keys)
    if number is None:
        raise ModelError(f"config.json has no {keys[0]}")
    return number


@dataclass(frozen=True, slots=True)
class _Length:
    max_seqlen: int  # tokens
    source: str
    note: str  # where that is fewer than the model's files ask for


def _length(folder: Path, config: Json, files: SentenceFiles, *, padding_idx: int | None) -> _Length:
    """How long a sequence may be, and who says so."""
    limit, why = _num_positions(config, padding_idx)
    asked, source = files.max_seqlen, files.max_seqlen_source
    if asked is None:
        source = "tokenizer_config.json"
        asked = number_in(read_optional(folder / source), "model_max_length") or _UNLIMITED
    if limit < 1:
        raise ModelError("config.json leaves no position for a token (max_position_embeddings)")
    if min(asked, limit) >= _UNLIMITED:
        note = f"no length is given anywhere: {_MAX_SEQLEN_WHERE_NOT_SAID} tokens"
        return _Length(_MAX_SEQLEN_WHERE_NOT_SAID, "no file", note)
    note = f"{why}: {limit} tokens" if limit < asked < _UNLIMITED or why == _LONG_ROPE else ""
    return _Length(min(asked, limit), source if asked <= limit else "config.json", note)


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
