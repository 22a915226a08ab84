"""Reads a model folder's JSON files, before torch or transformers are imported.

Of the weights it reads only the names of files and headers of heads. Every engine reads its folder by
`read_with`, and so passes no flag over.

`detect` finds the task by the rules of engine.model.detection in order: flags, modules.json, config.json, known
generative rerankers, files beside the model. The first that fits decides.
"""

import dataclasses
import errno
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.messages import LoadOptions
from engine.model.detection.architecture import Architecture, architecture_of
from engine.model.detection.backbone import Backbone, read_backbone
from engine.model.detection.detected import Detected, Files
from engine.model.detection.late_interaction import late_interaction, lengths_of_roles
from engine.model.detection.needed_files import check_placeholders
from engine.model.detection.scores import check_ranks_nothing, generative, names_of, scores
from engine.model.detection.sparse import masked_lm, side_heads, splade
from engine.model.detection.vocabulary import Vocabulary, surrounding_ids
from engine.model.json_files import MAX_DEPTH, Json, object_in, read_optional
from engine.model.known_code import kalm
from engine.model.known_code.known_code import CHUNK_SEPARATOR, LINEAR
from engine.model.lora import CONFIG as ADAPTER_CONFIG
from engine.model.lora import Adapter, adapter_files, check_apart, read_adapter, read_adapters
from engine.model.modules import Chain, read_chain
from engine.model.quantization import describe
from engine.model.sentence_files import CONFIG, chat_pairs, is_static, read_cuts, read_modules, read_notes, read_prompts
from engine.model.tasks import (
    Activation,
    Head,
    LateInteraction,
    PairTemplate,
    PooledScores,
    SequenceScores,
    Step,
    Task,
    TokenScores,
    TokenTable,
    TokenVectors,
    TokenWeights,
    VocabularyWeights,
    output_size,
)
from engine.model.weights import check_forms, has_weights
from engine.types import ModelError, ModelInfo, OutputKind
from wire.pairs import ChatPairs
from wire.tokenizer_files import has_chat_template

SPLADE = "splade"  # the value of --pooling, as in TEI
_SPARSE_HEADS = VocabularyWeights | TokenWeights

AUTO = "auto"  # of --task
_ENCODERS = frozenset(("t5", "mt5"))  # encoder-decoder architectures whose encoder can be served alone
_NOT_IN_FLOAT16 = ("embedding_gemma2",)  # beginnings of architectures
_WITH_ADAPTERS = frozenset(("jina_adapters", "jina_v5"))
_ADAPTERS_IN_FILES = "jina_v5"  # beside the weights: see engine.model.lora
_READ = frozenset((".json", ".safetensors", ".jinja", ".metadata"))  # kinds of files that may be read
_UNMERGED = ", which a start merges into its base, unless --convert never forbids it"
_SPARSE_WIDTH = 2  # numbers in a row: see OutputKind.SPARSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model, as its folder's JSON files describe it."""

    path: Path
    architecture: str  # transformers' model_type, or a name in engine.transformers.models
    config: Json  # config.json in the architecture's words, with the keys of text_config on top
    is_translated: bool  # whether config.json has words of its own code, so that it must not be read instead
    architectures: tuple[str, ...]  # class names in config.json, for information
    hidden_size: int
    vocab_size: int
    max_seqlen: int  # tokens, special ones included
    max_seqlen_source: str  # the file or flag that says so
    padding_idx: int | None  # positions are numbered from padding_idx + 1 (RoBERTa and similar); None = from 0
    do_lower_case: bool  # whether text is lower-cased before the tokenizer
    poolings: tuple[str, ...]  # of engine.model.tasks.POOLINGS; joined in this order
    pooling_source: str  # the file or flag that says so
    steps: tuple[Step, ...]  # after the pooling
    normalize: bool  # whether the last module is Normalize
    rounds: bool = False  # whether it makes whole numbers of a row: see engine.model.modules.ROUNDING
    chunk_separator_id: int | None = None  # between the chunks of a document; None = nothing is
    prompts: dict[str, str]  # by name; put before a text
    default_prompt_name: str | None  # a key of prompts
    include_prompt: bool  # False = pooling leaves a prompt's tokens out
    prompts_source: str = CONFIG  # the file or card that says so
    notes: tuple[str, ...] = ()  # choices and their reasons, a line each
    task: Task = Task.EMBED
    task_source: str = "no head"  # the file or flag that says so
    heads: tuple[Head, ...] = ()  # beside or instead of the pooling
    activation: Activation = Activation.IDENTITY  # turns raw scores into scores
    template: PairTemplate | None = None  # of a generative reranker
    late: LateInteraction | None = None  # if the model is for late interaction
    query_table: TokenTable | None = None  # if queries are looked up in a table
    adapters: tuple[str, ...] = ()  # the tasks for which it has adapters; texts without a task have none
    default_adapter: str | None = None  # for texts whose prompt is none of these; None = none computes them
    loras: tuple[Adapter, ...] = ()  # adapters by name, numbered from 1, that are computed beside the model
    is_static: bool = False  # whether it is only a table with a row for each token, for the static engine
    tokenizer_folder: str = ""  # folder of tokenizer.json, relative to path; "" = path
    truncate_dim: int | None = None  # numbers of a pooled row where a request does not say how many; None = all
    chat_of_texts: ChatPairs | None = None  # texts are put into the chat template, which must leave them as they are
    max_active_dims: int | None = None  # entries that are kept of a sparse row, the strongest; None = all

    @property
    def outputs(self) -> OutputKind:
        """The outputs of the model."""
        found = OutputKind.POOLED | OutputKind.TOKENS if self.task is Task.EMBED else OutputKind(0)
        if LINEAR in self.config:  # to its own code rows of tokens are those behind the layer, which is computed later
            found &= ~OutputKind.TOKENS
        for head in self.heads:
            found |= head.output
        return found

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the scores."""
        scored = [head.labels for head in self.heads if isinstance(head, SequenceScores | PooledScores | TokenScores)]
        return scored[0] if scored else ()

    @property
    def pooling(self) -> str:
        """The poolings in words, joined by +."""
        return "+".join(self.poolings)

    @property
    def dimensions(self) -> int:
        """Numbers in a pooled row; if the model has none, in a row of its main output."""
        if OutputKind.POOLED in self.outputs:
            return output_size(self.steps, self.hidden_size * len(self.poolings))
        vectors = [head.dimensions for head in self.heads if isinstance(head, TokenVectors)]
        if vectors:
            return vectors[0]
        return _SPARSE_WIDTH if OutputKind.SPARSE in self.outputs else max(len(self.labels), 1)

    @property
    def hides_tokens(self) -> bool:
        """Whether batches can have hidden tokens, which the others do not attend to."""
        late = self.late
        return late is not None and late.expansion_id is not None and not late.attends_to_expansion

    @property
    def weights_folder(self) -> Path:
        """The folder of model.safetensors."""
        return self.path / self.tokenizer_folder

    @property
    def adapter_files(self) -> list[Path]:
        """The files of its adapters, if they are not among its weights."""
        return adapter_files(self.weights_folder, self.adapters) if self.architecture == _ADAPTERS_IN_FILES else []

    @property
    def default_prompt(self) -> str:
        """The text that is put before each input if no prompt is named; mostly empty."""
        return "" if self.default_prompt_name is None else self.prompts[self.default_prompt_name]

    def info(
        self, *, name: str, engine: str, reason: str, dtype: str, device: str, notes: tuple[str, ...]
    ) -> ModelInfo:
        """The info of this model, loaded by this engine. `notes` come before the folder's own."""
        return ModelInfo(
            name=name,
            engine=engine,
            reason=reason,
            outputs=self.outputs,
            dimensions=self.dimensions,
            max_seqlen=self.max_seqlen,
            vocab_size=self.vocab_size,
            pooling=self.pooling,
            normalize=self.normalize,
            dtype=dtype,
            device=device,
            architecture=self.architecture,
            notes=(*notes, *self.notes),
        )


def read(
    path: Path | str,
    *,
    pooling: str | None = None,
    task: str | None = None,
    template: str | None = None,
    needs_weights: bool = True,
    known_classes: frozenset[str] = frozenset(),
    trusted_keys: Collection[str] = (),
) -> ModelFolder:
    """Read a folder. `pooling` (cls, mean, last-token, splade), `task` (of Task, or auto) and `template` (a name of
    engine.model.detection.templates, a JSON file, or none) override its files.

    known_classes: reward models' classes that the engine has itself, so the folder's code is not needed. They give one
    score.

    trusted_keys: keys of config.json that change nothing, says the user (--trust-config-key).

    Raises ModelError with one line if the model can't be served.
    """
    folder = Path(path)
    wanted = None if task in (None, AUTO) else Task(task)
    check_placeholders(folder, needs_weights=needs_weights)
    if needs_weights:
        check_forms(folder)
    served = _architecture(folder, known_classes, trusted_keys)
    sentence = read_modules(folder, served.config, pooling=None if pooling == SPLADE else pooling)
    files = Files(
        folder=folder,
        served=served,
        sentence=sentence,
        needs_weights=needs_weights,
        known_classes=known_classes,
        template=template,
    )
    if needs_weights:
        describe(files.backbone_folder)
    backbone = read_backbone(files)
    output_size(sentence.steps, backbone.hidden_size * len(sentence.poolings))  # raises if they do not fit
    return _described(files, backbone, detect(files, wanted=wanted, is_splade=pooling == SPLADE))


def _architecture(folder: Path, known_classes: frozenset[str], trusted: Collection[str]) -> Architecture:
    """The architecture of the folder's transformer; for static embeddings, which have none, config.json as it is."""
    config = _config(folder)
    chained = read_chain(folder)
    if is_static(chained.chain, config):
        return Architecture(config=config)
    return architecture_of(folder / chained.transformer_folder, config, known_classes=known_classes, trusted=trusted)


def _config(folder: Path) -> Json:
    """config.json, with the keys of text_config added."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    _check_links(folder)
    transformer = folder / read_chain(folder).transformer_folder
    for place in (folder, transformer):
        if (place / ADAPTER_CONFIG).is_file():
            why = " and weights of its own: move one of them elsewhere" if has_weights(place) else _UNMERGED
            raise ModelError(f"{place} holds an adapter ({ADAPTER_CONFIG}){why}")
    if not any((folder / name).is_file() for name in ("config.json", "modules.json")):
        raise ModelError(f"{folder} has no config.json, so it is not a model folder")
    config = read_optional(transformer / "config.json")
    options = read_optional(folder / kalm.OPTIONS)
    if kalm.is_reranker(config, names_of(folder, config), options):
        config = kalm.flattened(config, options)
    elif config.get("is_encoder_decoder"):
        _check_encoder(folder, config)
    config = {**object_in(config, "text_config", "config.json"), **config}
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError("architectures in config.json is not a list of names")
    return config


def _check_links(folder: Path) -> None:
    """Raises ModelError if a file that may be read is a link out of the folder, to nothing or to itself.

    In the hub's cache, links to the repository's own blobs are allowed.
    """
    home = folder.resolve()
    homes = [home, *([home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [])]
    for here, folders, names in os.walk(home):
        for name in [*folders, *names]:
            file = Path(here, name)
            if not file.is_symlink() or (name in names and file.suffix not in _READ):
                continue
            target = _target(file)
            if not any(target.is_relative_to(each) for each in homes):
                raise ModelError(f"{file} is a link out of the model's folder")
            if name in names and not file.exists():  # it would count as a file that the model does not have
                raise ModelError(f"{file} is a link to nothing: its target {target} is gone")
        if len(Path(here).relative_to(home).parts) >= MAX_DEPTH:
            folders.clear()


def _target(link: Path) -> Path:
    """A link's target. Raises ModelError if that is the link: Path.resolve raises RuntimeError or nothing, by
    version."""
    try:
        link.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ModelError(f"{link} is a link to itself") from error
    return link.resolve()


def _check_encoder(folder: Path, config: Json) -> None:
    """Raises ModelError if an encoder-decoder model is not for embeddings by its encoder alone."""
    if config.get("model_type") not in _ENCODERS:
        raise ModelError("config.json describes an encoder-decoder model, which is not supported")
    is_encoder = any(str(name).endswith("EncoderModel") for name in config.get("architectures") or ())
    if not is_encoder and not (folder / "modules.json").is_file():
        raise ModelError(
            "config.json describes an encoder-decoder model, and no modules.json says that its encoder alone gives "
            "embeddings"
        )


def detect(files: Files, *, wanted: Task | None, is_splade: bool) -> Detected:
    """Find the model's task. wanted: the value of --task, None = auto. is_splade: --pooling splade. Raises ModelError
    with one line if the model does not fit the task, or its head is broken."""
    found = _detect(files, wanted=wanted, is_splade=is_splade)
    if files.template and found.task is not Task.RERANK:
        raise ModelError(f"--template is for rerankers, and this model is for {found.task} ({found.source})")
    return found


def _detect(files: Files, *, wanted: Task | None, is_splade: bool) -> Detected:
    if is_splade:
        if wanted not in (None, Task.SPARSE):
            raise ModelError(f"--pooling splade is for --task sparse, not {wanted}")
        return masked_lm(files, "--pooling splade")
    if wanted is None:
        return next(_found(files, wanted))
    if wanted is Task.EMBED:
        return dataclasses.replace(next(_embeddings(files)), source="--task embed")
    seen = []
    for found in _found(files, wanted):
        if _fits(found, wanted):
            return dataclasses.replace(found, task=wanted, source=f"--task {wanted}; {found.source}")
        seen.append(found)
    if wanted is Task.SPARSE:
        return masked_lm(files, "--task sparse")
    in_words = "; ".join(dict.fromkeys(f"{found.task} ({found.source})" for found in seen))
    raise ModelError(f"--task {wanted}: the model is not for this; it is for {in_words}")


def _found(files: Files, wanted: Task | None) -> Iterator[Detected]:
    """The tasks that the model fits, the likeliest first."""
    if files.chain is Chain.SPARSE:
        yield splade(files)
        return
    yield from late_interaction(files)
    if files.chain in (Chain.EMBED, Chain.STATIC):
        yield from _embeddings(files)
    yield from scores(files)
    yield from generative(files, wanted=wanted)
    if wanted is None:
        check_ranks_nothing(files)
    yield from _embeddings(files)


def _embeddings(files: Files) -> Iterator[Detected]:
    if files.chain is Chain.POOLED_SCORES or files.config.get("model_type") == kalm.ARCHITECTURE:
        raise ModelError("the model is a cross-encoder: it gives a score of a pair, and no embeddings")
    yield from side_heads(files)
    others = [name for name in (files.config.get("architectures") or ())[1:] if name != files.architecture]
    notes = (f"embeddings alone: {', '.join(others)} in config.json is for other rows",) if others else ()
    yield Detected(task=Task.EMBED, source="modules.json" if files.chain else "no head", notes=notes)


def _fits(found: Detected, wanted: Task) -> bool:
    if found.task is wanted:
        return True
    match wanted:
        case Task.CLASSIFY:
            return any(isinstance(head, SequenceScores) for head in found.heads)
        case Task.SPARSE:
            return any(isinstance(head, _SPARSE_HEADS) for head in found.heads)
        case Task.LATE_INTERACTION:
            return any(isinstance(head, TokenVectors) for head in found.heads)
    return False


def _described(files: Files, backbone: Backbone, found: Detected) -> ModelFolder:
    sentence, prompts = files.sentence, read_prompts(files.folder)
    has_adapters = backbone.architecture in _WITH_ADAPTERS
    adapters = tuple(files.config.get("lora_adaptations") or ()) if has_adapters else ()
    if backbone.architecture == _ADAPTERS_IN_FILES and files.needs_weights:
        read_adapters(files.backbone_folder, adapters)
    truncate_dim, max_active_dims = read_cuts(files.folder)
    by_name = prompts.by_name if found.prompts is None else found.prompts
    # A template has its own default; a marker of queries or documents is no prompt.
    has_default = found.template is None and prompts.default_name in by_name
    late, max_seqlen, source = found.late, backbone.max_seqlen, backbone.max_seqlen_source
    chat_of_texts = _chat_of_texts(files, backbone.architecture)
    if late is not None:
        late, max_seqlen = lengths_of_roles(late, max_seqlen, backbone.num_positions)
        source = source if max_seqlen == backbone.max_seqlen else found.source
    return ModelFolder(
        path=files.folder,
        architecture=backbone.architecture,
        config=files.config,
        is_translated=files.served.is_translated,
        architectures=tuple(files.config.get("architectures") or ()),
        hidden_size=backbone.hidden_size,
        vocab_size=backbone.vocab_size,
        max_seqlen=max_seqlen,
        max_seqlen_source=source,
        padding_idx=backbone.padding_idx,
        do_lower_case=sentence.do_lower_case,
        poolings=sentence.poolings,
        pooling_source=sentence.pooling_source,
        steps=sentence.steps,
        normalize=sentence.normalize,
        rounds=sentence.rounds,
        chunk_separator_id=_chunk_separator_id(files) if CHUNK_SEPARATOR in files.config else None,
        prompts=by_name,
        prompts_source=prompts.source if found.prompts is None else CONFIG,
        default_prompt_name=prompts.default_name if has_default else None,
        # of a text in a chat template sentence-transformers pools the prompt too
        include_prompt=sentence.include_prompt or chat_of_texts is not None,
        notes=(
            # the note on pooling only if something is pooled
            *(note for note in backbone.notes if found.task is Task.EMBED or note != sentence.note),
            *([f"after the pooling: {', then '.join(map(str, sentence.steps))}"] if sentence.steps else ()),
            *found.notes,
            *read_notes(files.folder),
        ),
        task=found.task,
        task_source=found.source,
        heads=found.heads,
        activation=found.activation,
        template=found.template,
        late=late,
        query_table=found.query_table,
        adapters=adapters,
        default_adapter=files.config.get("default_adaptation") if has_adapters else None,
        is_static=files.chain is Chain.STATIC,
        tokenizer_folder=sentence.tokenizer_folder,
        chat_of_texts=chat_of_texts,
        truncate_dim=truncate_dim if found.task is Task.EMBED else None,
        max_active_dims=max_active_dims if found.task is Task.SPARSE else None,
    )


def _chunk_separator_id(files: Files) -> int:
    """Raises ModelError where every text has special tokens, which such a model's own code would not count."""
    folder = files.backbone_folder
    if surrounding_ids(folder):
        raise ModelError(
            "tokenizer.json puts tokens around texts, and this model's own code embeds the chunks of a document without"
        )
    return Vocabulary(folder).needed(files.config[CHUNK_SEPARATOR])


def _chat_of_texts(files: Files, architecture: str) -> ChatPairs | None:
    """See ModelFolder. Of rerankers the pairs are meant, which are the template's."""
    if files.chain in (Chain.SCORES, Chain.ANSWER) or not has_chat_template(files.backbone_folder):
        return None
    return chat_pairs(files.sentence.transformer, files.backbone_folder, architecture)


def read_as(folder: ModelFolder) -> Json:
    """The meaning that was found in config.json, for the keys of caches: its bytes alone do not say that."""
    found = {"architecture": folder.architecture, "config": folder.config, "is_translated": folder.is_translated}
    # graphs of such models had adapters among the token types once, and would compute none now
    return {**found, "adapters": folder.adapters} if folder.adapters else found


def read_with(options: LoadOptions, *, known_classes: frozenset[str] = frozenset()) -> ModelFolder:
    """The folder, with sequences of at most `options.max_seqlen` tokens. known_classes: see read. Raises ModelError
    with one line if the model can't be served."""
    folder = read(
        options.path,
        pooling=options.pooling,
        task=options.task,
        template=options.template,
        known_classes=known_classes,
        trusted_keys=options.trusted_keys,
    )
    if options.dtype == "float16" and folder.architecture.startswith(_NOT_IN_FLOAT16):
        raise ModelError(
            f"--dtype float16: the authors of {folder.architecture} say that its rows are wrong or not finite in it; "
            "take float32 or bfloat16"
        )
    asked = options.max_seqlen or folder.max_seqlen
    loras = _loras(options, folder)
    return dataclasses.replace(folder, max_seqlen=min(asked, folder.max_seqlen), loras=loras)


def _loras(options: LoadOptions, folder: ModelFolder) -> tuple[Adapter, ...]:
    """The adapters that are computed beside the model. Raises ModelError."""
    if options.loras and folder.adapters:
        raise ModelError(f"--lora {options.loras[0][0]}: the model has adapters of its own, and takes no others")
    loras = tuple(read_adapter(Path(place), name) for name, place in options.loras)
    for adapter in loras:
        check_apart(adapter)
    return loras


def check_special_tokens(folder: ModelFolder) -> None:
    """Raises ModelError if every text would contain an id for which the model has no row.

    tokenizer_pool checks the other ids of each request.
    """
    put_in: list[int | None] = [*surrounding_ids(folder.weights_folder)]
    if late := folder.late:  # which has markers, and a token that fills queries up
        put_in += [late.query_marker_id, late.document_marker_id, late.expansion_id]
    largest = max((token_id for token_id in put_in if token_id is not None), default=-1)
    if largest >= folder.vocab_size and not folder.is_static:
        raise ModelError(
            f"tokenizer.json puts the token {largest} around texts, and the model has {folder.vocab_size} rows for "
            "tokens (vocab_size in config.json): they are not of the same model"
        )
