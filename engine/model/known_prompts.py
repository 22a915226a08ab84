"""Prompts that authors ask for on their model cards, and that no file of their repositories holds.

Facts about published models, by the repository's name. Sources: the cards, and the prompts that
embeddings-benchmark/mteb evaluates with (mteb/models/model_implementations/*.py). Fine-tuned models have other names,
and nobody knows whether they were trained with a prompt, so a base model's name in config.json does not count.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from engine.model.json_files import read_optional
from engine.model.model_folder import ModelFolder
from engine.model.tasks import Task

_HUB_FOLDER = re.compile(r"models--(?:.+--)?(.+)")  # of the hub's cache, with snapshots/COMMIT in it
_IN_CARD = re.compile(r"^model-index:\s*\n\s*- name: *(\S+) *$", re.MULTILINE)
_CARD_CHARS = 1 << 14  # of the card, which are looked through

_SENTENCE = "Represent this sentence for searching relevant passages: "
_WEB_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
_WIKIPEDIA = "Instruct: Given a question, retrieve Wikipedia passages that answer the question\nQuery: "
_QUESTION = "Instruct: Given a question, retrieve passages that answer the question\nQuery: "
_HELPFUL = "Instruct: Given a question, retrieve passages that can help answer the question.\nQuery: "
_CODE = "Represent this query for searching relevant code: "
_SIMILAR = "Instruct: Retrieve semantically similar text.\nQuery: "


def _sides(query: str, document: str = "") -> dict[str, str]:
    return {"query": query, "document": document, "passage": document}


def _with_others(prompts: dict[str, str], others: str = "") -> dict[str, str]:
    """These prompts, and `others` for what is no search."""
    return prompts | dict.fromkeys(("classification", "clustering", "text-matching"), others)


_BGE = _with_others(_sides(_SENTENCE))
_BGE_CHINESE = _with_others(_sides("为这个句子生成表示以用于检索相关文章："))  # noqa: RUF001 - the authors' colon
_NOMIC = {
    **_sides("search_query: ", "search_document: "),
    "search_query": "search_query: ",
    "search_document": "search_document: ",
    "clustering": "clustering: ",
    "classification": "classification: ",
}
_JINA_V3 = {  # task_instructions in the config.json of jinaai/jina-embeddings-v3
    "retrieval.query": "Represent the query for retrieving evidence documents: ",
    "retrieval.passage": "Represent the document for retrieval: ",
    "classification": "",
    "separation": "",
    "text-matching": "",
}
# GritLM's card and gritlm_instruction in it; documents need no instruction
_GRITLM = _sides(
    "<|user|>\nGiven a web search query, retrieve relevant passages that answer the query\n<|embed|>\n", "<|embed|>\n"
)
_STELLA = {"s2p_query": _WEB_SEARCH.replace("the query\n", "the query.\n"), "s2s_query": _SIMILAR}

# Name of the repository without its owner, in lower case -> prompts by name. A copy under the same name has them too.
_BY_NAME: tuple[tuple[str, dict[str, str]], ...] = (
    # the card: "query: " also for what is no search
    (
        r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?",
        _with_others(_sides("query: ", "passage: "), "query: "),
    ),
    (r"multilingual-e5-large-instruct|e5-mistral-7b-instruct", _sides(_WEB_SEARCH)),
    (r"bge-(small|base|large)-en(-v1\.5)?", _BGE),
    (r"bge-(small|base|large)-zh(-v1\.5)?", _BGE_CHINESE),
    (r"snowflake-arctic-embed-(xs|s|m|m-long|l|m-v1\.5)", _BGE),
    (r"snowflake-arctic-embed-[ml]-v2\.0", _with_others(_sides("query: "))),
    (r"mxbai-embed-large-v1|uae-large-v1", _BGE),
    (r"nomic-embed-text-v1(\.5|-ablated|-unsupervised)?|nomic-embed-text-v2-moe|modernbert-embed-(base|large)", _NOMIC),
    (r"nomic-embed-code", _sides(_CODE)),
    (r"gte-qwen(1\.5|2)-[\d.]+b-instruct|inf-retriever-v1(-1\.5b)?|sfr-embedding-(mistral|2_r)", _sides(_WEB_SEARCH)),
    (r"llama-embed-nemotron-8b", _sides(_QUESTION)),
    (r"octen-embedding-(0\.6b|4b|8b)", _sides(_WEB_SEARCH.removesuffix(" "), " ")),
    (r"f2llm-v2-(80m|160m|330m|0\.6b|1\.7b|4b|8b|14b)", _sides(_HELPFUL)),
    (r"linq-embed-mistral", _sides(_WIKIPEDIA)),
    (r"nv-embed-v[12]", _sides(_QUESTION)),
    (r"gritlm-(7b|8x7b)", _GRITLM),
    (r"llama-(nemotron-embed|3\.2-nv-embedqa)-1b-v2", _sides("query: ", "passage: ")),
    (r"stella_en_(400m|1\.5b)_v5", _STELLA),
    (r"denseon(-unsupervised)?", _sides("query: ", "document: ")),
    (r"jina-embeddings-v3", _JINA_V3),
)


def with_known(folder: ModelFolder, model_id: str) -> ModelFolder:
    """The model with its card's prompts if it embeds and its files hold none; model_id: the name that was asked for.

    Prompts that are all empty are what sentence-transformers writes where there are none, unless one is the default.
    """
    if folder.task is not Task.EMBED or any(folder.prompts.values()) or folder.default_prompt_name is not None:
        return folder
    for name, told_by in _names(model_id, folder.path):
        prompts = _of(name)
        if prompts is not None:
            source = f"the card of {name}, known here; told by {told_by}"
            return dataclasses.replace(folder, prompts=folder.prompts | prompts, prompts_source=source)
    base = _repository(str(read_optional(folder.weights_folder / "config.json").get("_name_or_path", "")))
    if _of(base) is None:
        return folder
    note = f"config.json says that it was made of {base}, whose card asks for prompts; its own files hold none"
    return dataclasses.replace(folder, notes=(*folder.notes, note))


def _of(name: str) -> dict[str, str] | None:
    return next((prompts for pattern, prompts in _BY_NAME if re.fullmatch(pattern, name.lower())), None)


def _repository(name: str) -> str:
    """The repository's name without its owner."""
    return name.rstrip("/").rpartition("/")[2]


def _names(model_id: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Names that may be the repository's, and what has them."""
    yield _repository(model_id), "--model-id"
    for part in (folder.absolute(), *folder.absolute().parents[:2]):
        if cached := _HUB_FOLDER.fullmatch(part.name):
            yield cached[1], "the hub's cache"
    yield folder.absolute().name, "its folder"
    card = folder / "README.md"
    if card.is_file():
        with card.open(encoding="utf-8", errors="replace") as file:
            if indexed := _IN_CARD.search(file.read(_CARD_CHARS)):
                yield _repository(indexed[1]), "model-index in README.md"
