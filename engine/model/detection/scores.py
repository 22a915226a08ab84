"""Models that give scores: classifiers, cross-encoders, and rerankers that are asked with a template.

The first two are transformers' …ForSequenceClassification and …ForTokenClassification; their labels are in the order of
their scores. The others are generative models, or classifiers made from them. A template is never guessed. The flag
--template names it. What sentence-transformers 5.4 and later saved says itself whether pairs are put into the chat
template (`modality_config`). For other files the chat template, the model's name, or its card (README.md: first heading
and base_model) says whose it is. If nothing does and the class is one that such rerankers have, the start asks for the
flags: without their template scores are almost random (vllm issue 31538).
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from engine.model.card import Card, read_card
from engine.model.detection.architecture import INSTEAD_OF_LISTWISE
from engine.model.detection.detected import Detected, Files
from engine.model.detection.templates import (
    FAMILIES,
    KALM_RERANKER,
    NO_TEMPLATE,
    OF_CLASSES,
    Family,
    asked_for,
    choices,
    noted_template,
)
from engine.model.detection.vocabulary import Vocabulary
from engine.model.json_files import Json, check_known, number_in, object_in, read_object, read_optional
from engine.model.known_code import kalm
from engine.model.modules import Chain
from engine.model.sentence_files import CONFIG, chat_pairs, own_chat_pairs, read_prompts
from engine.model.tasks import Activation, AnswerScore, PairTemplate, PooledScores, SequenceScores, Task, TokenScores
from engine.model.weights import checkpoint_files, shapes_in
from engine.types import ModelError
from wire.tokenizer_files import has_chat_template

# names of the last layer of heads in transformers' classes
_LAST_LAYERS = ("classifier.weight", "classifier.out_proj.weight", "score.weight")
_DEFAULT_NUM_LABELS = 2  # labels, if config.json gives none, as in transformers
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
TEMPLATE_KEY = "embedline_template"  # in config.json: {"parts": [...], "instruction": "..."}; see PairTemplate
_GENERATING, _SCORING = "CausalLM", "SequenceClassification"  # ends of classes
_LISTWISE = "<|rerank_token|>"  # of jina-reranker-v3, which compares all documents of a query in one sequence
_EMBEDDING_TAGS = frozenset(("feature-extraction", "sentence-similarity"))
_RANKING_TAG, _RERANK = "text-ranking", "rerank"
_BY_CHAT = "its chat template"  # tells the family
_TRAINED = "generated_from_trainer"  # a tag: trained anew, with a template that the card does not say
_INSTRUCT = "\n\n<Instruct>"
_LOGITS = "causal_logits"  # sentence-transformers' name of what a generative model gives
REWARD = "reward"  # in names of models that score a chat, not a pair


def scores(files: Files) -> Iterator[Detected]:
    """None or one head. Raises ModelError for wrong labels or a wrong activation."""
    name = files.architecture
    if files.config.get("model_type") == kalm.ARCHITECTURE:
        yield _of_kalm(files)
    elif files.chain is Chain.POOLED_SCORES:
        activation, notes = activation_of(files, 1)
        source = "modules.json: a cross-encoder with a Pooling"
        yield Detected(task=Task.RERANK, source=source, heads=(PooledScores(),), activation=activation, notes=notes)
    elif name.endswith("ForSequenceClassification"):
        labels = _labels(files)
        activation, notes = activation_of(files, len(labels))
        if len(labels) > 1 and files.chain is Chain.SCORES and declared(files):
            raise ModelError(
                "'modality_config' has 'message', so pairs are put into a chat template, which is not supported for "
                "several labels"
            )
        kind = f"{len(labels)} labels" if len(labels) > 1 else "1 label"
        yield Detected(
            task=Task.RERANK if len(labels) == 1 else Task.CLASSIFY,
            source=f"config.json: {name} with {kind}",
            heads=(SequenceScores(labels=labels),),
            activation=activation,
            template=template_in(files) if len(labels) == 1 else None,
            notes=notes,
        )
    elif name.endswith("ForTokenClassification"):
        yield Detected(
            task=Task.TOKEN_CLASSIFY,
            source=f"config.json: {name}",
            heads=(TokenScores(labels=_labels(files)),),
            activation=Activation.SOFTMAX,
        )
    elif name in files.known_classes:
        yield Detected(
            task=Task.RERANK,
            source=f"config.json: {name}",
            heads=(SequenceScores(labels=labels_of({"num_labels": 1})),),
        )
    elif files.chain is Chain.SCORES:
        raise ModelError(f"modules.json describes a cross-encoder, but {name or 'config.json'} gives no scores")


def _labels(files: Files) -> tuple[str, ...]:
    labels = labels_of(files.config)
    if files.needs_weights:
        check_head(files.backbone_folder, len(labels))
    return labels


def labels_of(config: Json) -> tuple[str, ...]:
    """The labels. Raises ModelError for a label map of the wrong size."""
    num_labels = number_in(config, "num_labels")
    named = object_in(config, "id2label")
    if not named:
        return tuple(f"LABEL_{index}" for index in range(num_labels or _DEFAULT_NUM_LABELS))
    if set(named) != {str(index) for index in range(len(named))}:
        raise ModelError(f"id2label in config.json does not number its {len(named)} labels from 0 on")
    if num_labels not in (None, len(named)):
        raise ModelError(f"id2label in config.json has {len(named)} labels, and num_labels is {num_labels}")
    return tuple(str(named[str(index)]) for index in range(len(named)))


def check_head(folder: Path, num_labels: int) -> None:
    """Raises ModelError if the head in the weights gives another number of scores, or a header can't be read.

    Heads with other names of layers are not checked here.
    """
    for file in checkpoint_files(folder):
        for name, shape in shapes_in(file).items():
            if name in _LAST_LAYERS and (found := shape[0] if shape else 0) != num_labels:
                raise ModelError(
                    f"config.json names {num_labels} labels, and {name!r} in {file.name} gives {found} scores"
                )


def activation_of(files: Files, num_labels: int) -> tuple[Activation, tuple[str, ...]]:
    """The activation, and a note if the files name one in the model's own code. Raises ModelError."""
    is_cross_encoder = files.chain in (Chain.SCORES, Chain.POOLED_SCORES, Chain.ANSWER)
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


def generative(files: Files, *, wanted: Task | None) -> Iterator[Detected]:
    """None or one head. wanted: the value of --task, None = auto. Raises ModelError if it may be such a model and its
    template is not known."""
    if files.chain is Chain.ANSWER:
        yield _of_logit_score(files)
        return
    if not _is_generative(files):
        return
    if files.template == NO_TEMPLATE:
        raise ModelError(f"--template {NO_TEMPLATE} is for classifiers; a generative reranker needs one")
    if files.template:
        yield _detected(files, asked_for(files.template), "--template")
    elif (told := _told(files)) is not None:
        yield _detected(files, *told)
    elif wanted is Task.RERANK:
        raise ModelError(
            f"--task rerank: nothing in the folder says whose template this {files.architecture} is asked with; give "
            f"it as --template: {_choices(files)}, or a file"
        )
    elif wanted is None and _families(files) and not _embeds(files):
        raise ModelError(
            f"config.json: {files.architecture} is the class of embedding models and of rerankers, and nothing in the "
            f"folder says which this is: give --task embed, or --task rerank with --template ({_choices(files)}, or a "
            f"file)"
        )


def check_ranks_nothing(files: Files) -> None:
    """Raises ModelError where nothing gives scores, and the card or the name says that the model is a reranker: such as
    writes an order of documents, or has a head that is not known. Its rows would look like embeddings."""
    if files.chain is not None or _embeds(files):
        return
    is_named = any(_RERANK in name for name in names_of(files.folder, files.config))
    if is_named or _RANKING_TAG in read_card(files.folder).tags:
        said = f"its name says {_RERANK!r}" if is_named else f"README.md says {_RANKING_TAG!r}"
        asked = f" or --task rerank with --template ({_choices(files)}, or a file),"
        asks = asked if _is_generative(files) else ""
        raise ModelError(
            f"{said}, and nothing in the folder says how the model gives scores: give --task embed if its rows are "
            f"embeddings,{asks} or take a reranker of a known kind"
        )


def template_in(files: Files) -> PairTemplate | None:
    """The prompt of a classifier with one label; None if pairs are put together as the tokenizer does it. Raises
    ModelError if it may have one and nothing says which, or `embedline convert`'s note is wrong."""
    if files.template:
        return None if files.template == NO_TEMPLATE else asked_for(files.template).template
    if noted := object_in(files.config, TEMPLATE_KEY):
        return noted_template(noted, f"{TEMPLATE_KEY!r} in config.json")
    if files.chain is Chain.SCORES:
        return declared(files)
    card = read_card(files.folder)
    told = _told(files)
    if told is not None and (_TRAINED not in card.tags or told[1].startswith(_BY_CHAT)):
        return _template_of(files, *told)
    if told is None and files.architecture in OF_CLASSES:
        return OF_CLASSES[files.architecture]
    if told is None and (not _families(files) or _is_a_pair_scorer(files, card)):
        return None
    raise ModelError(
        f"config.json: {files.architecture} with 1 label may need a template around pairs, and nothing in the folder "
        f"says which: give --task rerank and --template ({_choices(files)}, or a file)"
    )


def _embeds(files: Files) -> bool:
    """Whether --pooling, config.json or the card says so."""
    if files.sentence.is_pooling_asked or files.config.get("is_causal") is False:
        return True
    return not _EMBEDDING_TAGS.isdisjoint(read_card(files.folder).tags)


def _is_a_pair_scorer(files: Files, card: Card) -> bool:
    """A CrossEncoder that sentence-transformers trained on pairs as they are, or a reward model."""
    is_reward = any(REWARD in name for name in (*names_of(files.folder, files.config), *card.names, *card.tags))
    return is_reward or "sentence_transformers" in files.config


def _told(files: Files) -> tuple[Family, str] | None:
    """The family that the folder's files name, and which file does. Raises ModelError for a listwise reranker."""
    if _families(files) and _LISTWISE in _special_words(files):
        raise ModelError(
            f"the vocabulary has {_LISTWISE}: a listwise reranker, which is not supported: {INSTEAD_OF_LISTWISE}"
        )
    chat, names, of_card = _chat_template(files), names_of(files.folder, files.config), read_card(files.folder).names
    for family in FAMILIES:
        if family.phrase is not None and family.phrase in chat:
            return family, f"{_BY_CHAT} is that of {family.name}"
    for family in _families(files):
        if _any_in(family.names, names):
            return family, f"its name is that of {family.name}"
        if _any_in(family.names, of_card):
            return family, f"README.md names {family.name}"
    return None


def _is_generative(files: Files) -> bool:
    return files.architecture.endswith(_GENERATING) and files.chain is None


def _families(files: Files) -> list[Family]:
    known = ((family, family.classes + end) for family in FAMILIES for end in (_GENERATING, _SCORING))
    return [family for family, name in known if name == files.architecture]


def _choices(files: Files) -> str:
    own = [family.name for family in _families(files)]
    if files.architecture.endswith(_SCORING):
        return ", ".join([*own, NO_TEMPLATE])
    return ", ".join(own or choices()[:-1])


def _any_in(parts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    return any(part in name for part in parts for name in names)


def _detected(files: Files, family: Family, source: str) -> Detected:
    if family.yes is None:
        raise ModelError(f'{family.name} names no answer: a generative reranker needs "yes": "TOKEN" in it')
    vocabulary = Vocabulary(files.backbone_folder)
    yes_id = vocabulary.needed(family.yes)
    no_id = vocabulary.needed(family.no) if family.no is not None else None
    return Detected(
        task=Task.RERANK,
        source=source,
        heads=(AnswerScore(yes_id=yes_id, no_id=no_id),),
        activation=family.activation,
        template=_template_of(files, family, source),
    )


def _template_of(files: Files, family: Family, source: str) -> PairTemplate:
    """The family's; or the chat template that tells the family, where it has places for a query and a document: it may
    ask in other words, or in another order."""
    chat, folder = _chat_template(files), files.backbone_folder
    has_places = all(f"'{role}'" in chat or f'"{role}"' in chat for role in ("query", "document"))
    if not source.startswith(_BY_CHAT) or not has_places or not has_chat_template(folder):
        return family.template
    own = own_chat_pairs(folder, str(files.config["model_type"]))
    return PairTemplate(instruction=read_prompts(files.folder).default, chat=own)


def _of_kalm(files: Files) -> Detected:
    """Its document stands before the question: see engine.transformers.models.kalm."""
    if files.template:
        raise ModelError(f"--template {files.template}: a {KALM_RERANKER.name} has a template of its own")
    words = KALM_RERANKER.template.parts[2]
    asked = kalm.system_instruction(files.folder)
    own = words if asked is None else f"user\n{asked}{words[words.index(_INSTRUCT) :]}"
    if any(place in own.removesuffix(words[words.index(_INSTRUCT) :]) for place in ("{query}", "{document}")):
        raise ModelError(f"'system_instruction' in {kalm.OPTIONS} has a place for a text")
    before, start, _, end = KALM_RERANKER.template.parts
    instruction = read_prompts(files.folder).default or KALM_RERANKER.template.instruction
    template = PairTemplate(parts=(before, start, own, end), instruction=instruction)
    found = _detected(files, KALM_RERANKER, f"{kalm.OPTIONS}, or its name")
    activation, notes = activation_of(files, 1)
    return dataclasses.replace(found, template=template, activation=activation, notes=notes)


def _of_logit_score(files: Files) -> Detected:
    """A CrossEncoder of sentence-transformers."""
    where = f"{files.sentence.modules[1].path}/config.json"
    config = read_object(files.folder / where)
    check_known(config, ("true_token_id", "false_token_id", "module_input_name"), where)
    if config.get("module_input_name", _LOGITS) != _LOGITS:
        raise ModelError(f"'module_input_name' in {where} is not {_LOGITS}, which is all that is supported")
    yes_id, no_id = config.get("true_token_id"), config.get("false_token_id")
    if not _is_id(yes_id) or not (no_id is None or _is_id(no_id)):
        raise ModelError(f"{where} has no true_token_id, or a token id that is not valid")
    activation, notes = activation_of(files, 1)
    return Detected(
        task=Task.RERANK,
        source=where,
        heads=(AnswerScore(yes_id=yes_id, no_id=no_id),),
        activation=activation,
        template=_of_cross_encoder(files),
        notes=notes,
    )


def _of_cross_encoder(files: Files) -> PairTemplate | None:
    """The flag's with the model's own instruction, or what its files declare."""
    if not files.template:
        return declared(files)
    if files.template == NO_TEMPLATE:
        return None
    template = asked_for(files.template).template
    return dataclasses.replace(template, instruction=read_prompts(files.folder).default or template.instruction)


def declared(files: Files) -> PairTemplate | None:
    """The chat template, where sentence-transformers puts pairs into it: its files have `message` among the modalities.
    None where they are joined as the tokenizer does it. Raises ModelError."""
    chat = chat_pairs(files.sentence.transformer, files.backbone_folder, str(files.config["model_type"]))
    if chat is None:
        return None
    if not has_chat_template(files.backbone_folder):
        raise ModelError("'modality_config' says that pairs are put into a chat template, and there is none")
    return PairTemplate(instruction=read_prompts(files.folder).default, chat=chat)


def _is_id(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _special_words(files: Files) -> str:
    """The small files that list special tokens, as one text."""
    names = ("added_tokens.json", "special_tokens_map.json")
    return " ".join(str(read_optional(files.backbone_folder / name)) for name in names)


def _chat_template(files: Files) -> str:
    """The chat template as one text, from whichever file has it, or "". It may be a list of named ones."""
    folder = files.backbone_folder
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8", errors="replace").replace("\\", "")
    known = read_optional(folder / "chat_template.json") or read_optional(folder / "tokenizer_config.json")
    return str(known.get("chat_template") or "").replace("\\", "")


def names_of(folder: Path, config: Json) -> tuple[str, ...]:
    """The model's names in lower case: of its folder or the hub's cache, and in config.json."""
    repository = folder.parents[1].name if folder.parent.name == "snapshots" else folder.name
    return repository.lower(), str(config.get("_name_or_path", "")).lower()
