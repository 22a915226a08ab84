"""Templates of rerankers that are asked in words, with their answer tokens.

Such a reranker answers with a token whether a document fits a query. The templates are the models' own:

- Qwen3-Reranker: its model card;
- mxbai-rerank-v2: mxbai_rerank (mxbai_rerank_v2.py);
- bge-reranker-v2-gemma: FlagEmbedding (inference/reranker/decoder_only/base.py);
- zerank-1 and -2: their cards and 1_LogitScore/config.json (the raw score of "Yes", since May 2026 without a sigmoid);
- ctxl-rerank-v2: its card (the raw score of token 0, which is "!");
- KaLM-Reranker-V1: its card and kalm_reranker_utils.py.
"""

from dataclasses import dataclass
from pathlib import Path

from engine.model.json_files import Json, read_object
from engine.model.known_code.bge import COST_WISE_CLASS, LAYERWISE_CLASS
from engine.model.tasks import Activation, PairTemplate
from engine.types import ModelError

_BGE = ("<bos>", "A: {query}", "\n", "B: {document}", "\n")
_YES_OR_NO = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
    "prediction of either 'Yes' or 'No'."
)
NO_TEMPLATE = "none"  # of --template: pairs are put together as the tokenizer does it


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Rerankers that are asked with one template."""

    name: str
    classes: str = ""  # how their names in config.json begin; "" = any
    names: tuple[str, ...] = ()  # parts of a repository's name, lower case
    phrase: str | None = None  # only in its chat template
    yes: str | None = None  # its answers; only a template from a file may lack them
    no: str | None = None
    activation: Activation = Activation.SIGMOID
    template: PairTemplate


FAMILIES = (
    Family(
        name="Qwen3-Reranker",
        classes="Qwen3For",
        names=("qwen3-reranker",),
        phrase='answer can only be "yes" or "no"',
        yes="yes",
        no="no",
        template=PairTemplate(
            parts=(
                "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
                'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
                "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
                "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
            ),
            instruction="Given a web search query, retrieve relevant passages that answer the query",
        ),
    ),
    Family(
        name="mxbai-rerank-v2",
        classes="Qwen2For",
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
                "query-document pair, carefully analyze the semantic relationship between them, then provide your "
                "binary relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:",
                "<|im_end|>\n<|im_start|>assistant\n",
            ),
            instruction="",
        ),
    ),
    Family(
        name="bge-reranker-v2-gemma",
        classes="GemmaFor",
        names=("bge-reranker-v2-gemma",),
        yes="Yes",
        template=PairTemplate(
            parts=(*_BGE, _YES_OR_NO),
            instruction="",
        ),
    ),
    Family(
        name="zerank",
        classes="Qwen3For",
        names=("zerank-1", "zerank-2"),
        yes="Yes",
        activation=Activation.IDENTITY,
        template=PairTemplate(
            parts=(
                "<|im_start|>system\n",
                "{query}",
                "<|im_end|>\n<|im_start|>user\n",
                "{document}",
                "<|im_end|>\n<|im_start|>assistant\n",
            ),
            instruction="",
        ),
    ),
    Family(
        name="ctxl-rerank-v2",
        classes="Qwen3For",
        names=("ctxl-rerank-v2",),
        yes="!",
        activation=Activation.IDENTITY,
        template=PairTemplate(
            parts=(
                "Check whether a given document contains information helpful to answer the query.\n",
                "<Document> {document}",
                "\n",
                "<Query> {query}",
                " {instruction}",
                " ??",
            ),
            instruction="",
        ),
    ),
)
KALM_RERANKER = Family(
    name="KaLM-Reranker-V1",  # of one architecture that has no other; --template does not name it
    yes="yes",
    no="no",
    template=PairTemplate(
        parts=(
            "<Document>: {document}",
            "<bos><start_of_turn>",
            "user\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
            'Note that the answer can only be "yes" or "no".\n\n<Instruct>: {instruction}\n<Query>: {query}',
            "<end_of_turn>\n<start_of_turn>model\n\n\n\n",
        ),
        instruction="Given a query, retrieve documents that answer the query.",
    ),
)
# Classifiers that score a pair as one text: class -> as on the card of nvidia/llama-nemotron-rerank-1b-v2, and as
# FlagEmbedding asks BGE's (inference/reranker/decoder_only/lightweight.py, layerwise.py)
OF_CLASSES = {
    "LlamaBidirectionalForSequenceClassification": PairTemplate(
        parts=("<|begin_of_text|>", "question:{query} \n \n passage:{document}"), instruction=""
    ),
    COST_WISE_CLASS: PairTemplate(
        parts=(*_BGE, "Predict whether passage B contains an answer to query A."), instruction=""
    ),
    LAYERWISE_CLASS: PairTemplate(parts=("<s>", *_BGE[1:], _YES_OR_NO), instruction=""),
}


def template_name(template: PairTemplate | None) -> str | None:
    """The family's name, for people; None for a template of the model's own."""
    if template and template.chat:
        return "its chat template"
    parts = template.parts if template else ()
    return next((family.name for family in (*FAMILIES, KALM_RERANKER) if family.template.parts == parts), None)


def asked_for(value: str) -> Family:
    """The family that --template names, or that its file describes. Raises ModelError."""
    for family in FAMILIES:
        if family.name.lower() == value.lower():
            return family
    if not Path(value).is_file():
        raise ModelError(f"--template {value} is neither a file nor one of {', '.join(choices())}")
    noted = read_object(Path(value))
    answers = {key: noted.get(key) for key in ("yes", "no")}
    if wrong := next((key for key, answer in answers.items() if not isinstance(answer, str | None)), None):
        raise ModelError(f"{wrong!r} in {value} is not a token's text")
    yes, no = answers["yes"], answers["no"]
    return Family(name=value, yes=yes, no=no, template=noted_template(noted, value))


def choices() -> list[str]:
    """The values that --template takes beside a file."""
    return [*(family.name for family in FAMILIES), NO_TEMPLATE]


def noted_template(noted: Json, where: str) -> PairTemplate:
    """The template of {"parts": […], "instruction": "…"}. where: the file or key, for the error. Raises ModelError."""
    parts, instruction = noted.get("parts"), noted.get("instruction", "")
    is_list = isinstance(parts, list) and all(isinstance(part, str) for part in parts)
    joined = "".join(parts) if is_list and parts is not None else ""
    if not isinstance(instruction, str) or any(joined.count(place) != 1 for place in ("{query}", "{document}")):
        raise ModelError(f"{where} is not a template with one query and one document")
    return PairTemplate(parts=tuple(parts or ()), instruction=instruction)
