"""What each API's fields do here: the tables of docs/api/. `make docs` writes them.

`FIELDS` has the fields that an API documents. What a route's body declares is honoured, what stands in KNOWN_FIELDS
and not in the body is refused, and the rest has no effect.
"""

from dataclasses import dataclass

import msgspec

from server.dialects.huggingface import TaskBody
from server.dialects.reading.json_body import KNOWN_FIELDS
from server.dialects.table import ROUTES

_BODIES: dict[str, tuple[type[msgspec.Struct], ...]] = {route.path: route.bodies for route in ROUTES}
_BODIES["/"] += (TaskBody,)


@dataclass(frozen=True, slots=True)
class Fields:
    """Of one route in one API. All are names with spaces between."""

    path: str
    names: str
    passed_over: str = ""  # of those, without effect though our body may declare them
    refused: str = ""  # and declared only to be refused
    honoured: str = ""  # in an object of the body


@dataclass(frozen=True, slots=True)
class Sorted:
    """The same by what they do."""

    honoured: tuple[str, ...]
    refused: tuple[str, ...]
    without_effect: tuple[str, ...]


_OPENAI = Fields("/v1/embeddings", "input model dimensions encoding_format user", "user")
_TEI = "truncate truncation_direction"
_VLLM = "model user truncate_prompt_tokens truncation_side padding request_id priority mm_processor_kwargs cache_salt"
_PASSED_OVER = "user request_id priority cache_salt"
_CHAT = "messages add_generation_prompt continue_final_message chat_template chat_template_kwargs media_io_kwargs"
_PARAMETERS = "parameters.prompt_name parameters.truncate parameters.truncation_direction"
_PAIRS = "queries documents items data_1 data_2 text_1 text_2"

FIELDS: dict[str, tuple[Fields, ...]] = {
    "openai": (_OPENAI,),
    "tei": (
        Fields("/embed", f"inputs {_TEI} prompt_name normalize dimensions"),
        Fields("/embed_all", f"inputs {_TEI} prompt_name"),
        Fields("/embed_sparse", f"inputs {_TEI} prompt_name"),
        Fields("/predict", f"inputs {_TEI} raw_scores"),
        Fields("/rerank", f"query texts {_TEI} raw_scores return_text"),
        Fields("/similarity", "inputs", honoured=_PARAMETERS),
        Fields("/tokenize", "inputs add_special_tokens prompt_name"),
        Fields("/decode", "ids skip_special_tokens"),
        _OPENAI,
        Fields(
            "/vertex",
            "instances parameters",
            refused="parameters instances.outputDimensionality instances.autoTruncate instances.task_type",
        ),
    ),
    "baseten": (
        _OPENAI,
        Fields("/rerank", f"query texts model {_TEI} raw_scores return_text"),
        Fields("/predict", f"inputs model {_TEI} raw_scores"),
        Fields("/predict_tokens", f"inputs model {_TEI} raw_scores aggregation_strategy"),
    ),
    "vllm": (
        Fields(
            "/v1/embeddings",
            f"input {_CHAT} {_VLLM} add_special_tokens encoding_format embed_dtype endianness dimensions "
            "use_activation late_chunking_params",
            _PASSED_OVER,
        ),
        Fields(
            "/pooling",
            f"input {_CHAT} {_VLLM} add_special_tokens task encoding_format embed_dtype endianness dimensions "
            "use_activation",
            _PASSED_OVER,
        ),
        Fields("/classify", f"input {_CHAT} {_VLLM} add_special_tokens use_activation", _PASSED_OVER),
        Fields(
            "/score",
            f"{_PAIRS} {_VLLM} use_activation instruction max_tokens_per_query max_tokens_per_doc chat_template_kwargs",
            _PASSED_OVER,
        ),
        Fields(
            "/rerank",
            f"query documents top_n {_VLLM} use_activation instruction max_tokens_per_query max_tokens_per_doc "
            "chat_template_kwargs",
        ),
        Fields("/tokenize", f"prompt {_CHAT} model add_special_tokens return_token_strs"),
        Fields("/detokenize", "tokens model"),
    ),
    "infinity": (
        Fields("/embeddings", "input model encoding_format dimensions modality user", "user"),
        Fields("/rerank", "query documents model top_n return_documents raw_scores"),
        Fields("/classify", "input model raw_scores"),
    ),
    "cohere": (
        Fields("/v1/embed", "texts images model input_type embedding_types truncate"),
        Fields(
            "/v2/embed",
            "texts inputs images model input_type embedding_types output_dimension max_tokens truncate priority",
        ),
        Fields("/v1/rerank", "query documents model top_n rank_fields return_documents max_chunks_per_doc"),
        Fields("/v2/rerank", "query documents model top_n max_tokens_per_doc priority"),
        Fields("/v1/tokenize", "text model"),
        Fields("/v1/detokenize", "tokens model"),
    ),
    "jina": (
        Fields(
            "/v1/embeddings",
            "input model task dimensions normalized embedding_type encoding_format truncate late_chunking "
            "return_multivector",
        ),
        Fields("/v1/rerank", "query documents model top_n return_documents"),
        Fields("/v1/classify", "input model labels classifier_id"),
    ),
    "voyage": (
        Fields(
            "/v1/embeddings", "input model input_type truncation output_dimension output_dtype encoding_format"
        ),
        Fields(
            "/v1/contextualizedembeddings",
            "inputs model input_type output_dimension output_dtype encoding_format enable_auto_chunking chunk_size "
            "chunk_overlap",
        ),
        Fields("/v1/rerank", "query documents model top_k return_documents truncation"),
    ),
    "mixedbread": (
        Fields("/v1/embeddings", "input model dimensions prompt normalized encoding_format"),
        Fields("/v1/reranking", "query input model rank_fields top_k return_input rewrite_query"),
    ),
    "huggingface": (
        Fields(
            "/",
            "inputs normalize dimensions prompt_name truncate truncation_direction encoding_format",
            honoured=f"parameters.function_to_apply parameters.top_k parameters.aggregation_strategy {_PARAMETERS}",
            refused="parameters.candidate_labels parameters.stride parameters.ignore_labels",
        ),
    ),
    "ollama": (
        Fields("/api/embed", "model input truncate dimensions keep_alive", "keep_alive", honoured="options.num_ctx"),
        Fields("/api/embeddings", "model prompt keep_alive", "keep_alive", honoured="options.num_ctx"),
    ),
    "weaviate": (
        Fields(
            "/vectors",
            "text texts",
            honoured="config.task_type config.dimensions",
            refused="config.pooling_strategy",
        ),
        Fields("/rerank", "query documents property"),
    ),
}  # fmt: skip


def by_effect(fields: Fields) -> Sorted:
    """What a route does with the fields of one API."""
    declared = {field.encode_name for body in _BODIES[fields.path] for field in msgspec.structs.fields(body)}
    passed_over, declared_refused = set(fields.passed_over.split()), set(fields.refused.split())
    names = dict.fromkeys((*fields.names.split(), *fields.honoured.split(), *fields.refused.split()))
    honoured = (declared | set(fields.honoured.split())) - passed_over - declared_refused
    known = {name for name, row in KNOWN_FIELDS.items() if row.neutral is not None}
    refused = (known - declared) | declared_refused
    return Sorted(
        tuple(name for name in names if name in honoured),
        tuple(name for name in names if name in refused),
        tuple(name for name in names if name not in honoured | refused),
    )


def table(api: str) -> str:
    """A line for each route of an API."""
    lines = ["| route | honoured | refused by name | without effect |", "|---|---|---|---|"]
    for fields in FIELDS[api]:
        effects = by_effect(fields)
        cells = [_cell(names) for names in (effects.honoured, effects.refused, effects.without_effect)]
        lines.append(f"| `{fields.path}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
