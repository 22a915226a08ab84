"""Generative rerankers, which answer with a token whether a document fits a query: their prompts and answer tokens.

Prompts are the models' own, from Qwen3-Reranker's model card, mxbai_rerank (mxbai_rerank_v2.py) and FlagEmbedding
(inference/reranker/decoder_only/base.py). A folder's chat template or name says which of them it holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from engine.model.detection.chains import Chain
from engine.model.detection.detected import Detected, Files
from engine.model.detection.labels import activation_of
from engine.model.detection.vocabulary import Vocabulary
from engine.model.json_files import Json, object_in, read_object, read_optional
from engine.model.sentence_files import read_prompts
from engine.model.tasks import Activation, AnswerScore, PairTemplate, Task
from engine.types import ModelError

TEMPLATE_KEY = "embedline_template"  # in config.json: {"parts": [...], "instruction": "..."}; see PairTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    name: str
    architecture: str  # the class in config.json
    names: tuple[str, ...]  # parts of a repository's name, lower case
    phrase: str | None  # only in its chat template
    yes: str
    no: str | None
    template: PairTemplate


_QWEN3 = _Family(
    name="Qwen3-Reranker",
    architecture="Qwen3ForCausalLM",
    names=("qwen3-reranker",),
    phrase='answer can only be "yes" or "no"',
    yes="yes",
    no="no",
    template=PairTemplate(
        parts=(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
            'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
            "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        instruction="Given a web search query, retrieve relevant passages that answer the query",
    ),
)
_MXBAI = _Family(
    name="mxbai-rerank-v2",
    architecture="Qwen2ForCausalLM",
    names=("mxbai-rerank",),
    phrase="You are a search relevance expert",
    yes="1",
    no="0",
    template=PairTemplate(
        parts=(
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\n",
            "instruction: {instruction}\n",
            "query: {query}",
            "\n",
            "document: {document}",
            "\n",
            "You are a search relevance expert who evaluates how well documents match search queries. For each "
            "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
            "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:",
            "<|im_end|>\n<|im_start|>assistant\n",
        ),
        instruction="",
    ),
)
_BGE_GEMMA = _Family(
    name="bge-reranker-v2-gemma",
    architecture="GemmaForCausalLM",
    names=("bge-reranker-v2-gemma",),
    phrase=None,
    yes="Yes",
    no=None,
    template=PairTemplate(
        parts=(
            "<bos>",
            "A: {query}",
            "\n",
            "B: {document}",
            "\n",
            "Given a query A and a passage B, determine whether the passage contains an answer to the query by "
            "providing a prediction of either 'Yes' or 'No'.",
        ),
        instruction="",
    ),
)
_FAMILIES = (_QWEN3, _MXBAI, _BGE_GEMMA)


def generative(files: Files, *, asked: bool) -> Iterator[Detected]:
    """None or one. asked: --task rerank is given, so the architecture decides if nothing else does.

    Raises ModelError if it is given and the model's prompt is not known.
    """
    if files.chain is Chain.ANSWER:
        yield _of_logit_score(files)
        return
    if not files.architecture.endswith("ForCausalLM") or files.chain is not None:
        return
    chat = _chat_template(files)
    families = [family for family in _FAMILIES if family.architecture == files.architecture]
    for family in families:
        if family.phrase is not None and family.phrase in chat:
            yield _detected(files, family, f"its chat template is that of {family.name}")
            return
        if any(name in each for name in family.names for each in _names(files)):
            yield _detected(files, family, f"its name is that of {family.name}")
            return
    if asked and not families:
        known = ", ".join(f"{family.architecture} ({family.name})" for family in _FAMILIES)
        raise ModelError(f"--task rerank: no template is known for {files.architecture}, only for {known}")
    if asked:
        yield _detected(files, families[0], f"config.json: {files.architecture}, taken for {families[0].name}")


def template_in(files: Files) -> PairTemplate | None:
    """The prompt of a sequence classifier that was made from a generative reranker: from `embedline convert`'s note in
    config.json, or by its chat template. Raises ModelError if the note is wrong."""
    if noted := object_in(files.config, TEMPLATE_KEY):
        return _noted(noted)
    family = _by_phrase(_chat_template(files))
    return family.template if family else None


def _noted(noted: Json) -> PairTemplate:
    parts, instruction = noted.get("parts"), noted.get("instruction")
    is_list = isinstance(parts, list) and all(isinstance(part, str) for part in parts)
    joined = "".join(parts) if is_list and parts is not None else ""
    if not isinstance(instruction, str) or any(joined.count(place) != 1 for place in ("{query}", "{document}")):
        raise ModelError(f"{TEMPLATE_KEY!r} in config.json is not a template with one query and one document")
    return PairTemplate(parts=tuple(parts or ()), instruction=instruction)


def template_name(template: PairTemplate | None) -> str | None:
    """The family's name, for people."""
    parts = template.parts if template else ()
    return next((family.name for family in _FAMILIES if family.template.parts == parts), None)


def _detected(files: Files, family: _Family, source: str) -> Detected:
    vocabulary = Vocabulary(files.folder)
    head = AnswerScore(
        yes_id=vocabulary.needed(family.yes), no_id=vocabulary.needed(family.no) if family.no is not None else None
    )
    return Detected(
        task=Task.RERANK, source=source, heads=(head,), activation=Activation.SIGMOID, template=family.template
    )


def _of_logit_score(files: Files) -> Detected:
    """A CrossEncoder of sentence-transformers. Its chat template is a program and is never run."""
    where = f"{files.sentence.modules[1].path}/config.json"
    config = read_object(files.folder / where)
    yes_id, no_id = config.get("true_token_id"), config.get("false_token_id")
    if not _is_id(yes_id) or not (no_id is None or _is_id(no_id)):
        raise ModelError(f"{where} has no true_token_id, or a token id that is not valid")
    family = _by_phrase(_chat_template(files))
    if family is None:
        known = " and ".join(family.name for family in _FAMILIES if family.phrase)
        raise ModelError(f"chat templates are never run as code, and this one is none of the known ones: {known}")
    activation, notes = activation_of(files, 1)
    prompts = read_prompts(files.folder)
    said = prompts.by_name.get(prompts.default_name or "")
    return Detected(
        task=Task.RERANK,
        source=where,
        heads=(AnswerScore(yes_id=yes_id, no_id=no_id),),
        activation=activation,
        template=PairTemplate(parts=family.template.parts, instruction=said or family.template.instruction),
        notes=notes,
    )


def _is_id(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _by_phrase(chat: str) -> _Family | None:
    return next((family for family in _FAMILIES if family.phrase is not None and family.phrase in chat), None)


def _chat_template(files: Files) -> str:
    """The chat template as one text, from whichever file has it, or "". It may be a list of named ones."""
    file = files.folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8", errors="replace").replace("\\", "")
    known = read_optional(files.folder / "chat_template.json") or read_optional(files.folder / "tokenizer_config.json")
    return str(known.get("chat_template") or "").replace("\\", "")


def _names(files: Files) -> tuple[str, ...]:
    """The model's names in lower case: of its folder or the hub's cache, and in config.json."""
    folder = files.folder
    repository = folder.parents[1].name if folder.parent.name == "snapshots" else folder.name
    return repository.lower(), str(files.config.get("_name_or_path", "")).lower()
