"""Every route of a dialect: one line for each dialect. ROUTES compute, PLAIN_ROUTES say what is served, or refuse."""

from server.dialects import (
    classify,
    cohere,
    huggingface,
    invocations,
    ollama,
    openai,
    rerank,
    sparse,
    tei,
    vllm,
    voyage,
    weaviate,
)
from server.dialects.answers import ErrorShape, openai_error, text_error
from server.dialects.route import Route

_ROUTES: tuple[Route, ...] = (
    *openai.ROUTES,
    *tei.EMBED_ROUTES,
    invocations.by_field(
        {
            "inputs": tei.TOKENIZE,
            "prompt": vllm.TOKENIZE,
            "messages": vllm.TOKENIZE,
            "text": cohere.TOKENIZE,
        }
    ),
    *tei.ROUTES,
    *sparse.ROUTES,
    *huggingface.ROUTES,
    *classify.ROUTES,
    *rerank.ROUTES,
    *cohere.ROUTES,
    *vllm.ROUTES,
    *voyage.ROUTES,
    *ollama.ROUTES,
    *weaviate.ROUTES,
)
ROUTES = (*_ROUTES, *invocations.invocation_routes(_ROUTES, huggingface.BY_TASK))
PLAIN_ROUTES: tuple[Route, ...] = (
    *ollama.PLAIN_ROUTES,
    *weaviate.PLAIN_ROUTES,
    *openai.PLAIN_ROUTES,
    *vllm.PLAIN_ROUTES,
)
_OLLAMAS = "/api/"  # also /api/generate, which this server does not have
_PLAIN_SHAPES = {route.path: route.error_shape for route in PLAIN_ROUTES}


def plain_error_shape(path: str) -> ErrorShape:
    """The shape of errors that no route answers at a path: as OpenAI's, unless a dialect has it, or all that begin like
    it."""
    usual = text_error if path.startswith(_OLLAMAS) else openai_error
    return _PLAIN_SHAPES.get(path, usual)
