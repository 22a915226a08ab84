"""Every route of a dialect: one line for each dialect. ROUTES take POST and a body, PLAIN_ROUTES need no body."""

from server.dialects import baseten, classify, cohere, huggingface, invocations, ollama, openai, rerank, weaviate
from server.dialects.error_shapes import openai_error, text_error
from server.dialects.invocations import by_field
from server.dialects.route import ErrorShape, PlainRoute, Route
from server.dialects.tei import embed, predict, tokens
from server.dialects.vllm import pooling, score, tokenize
from server.dialects.vllm import shared as vllm

_ROUTES: tuple[Route, ...] = (
    *openai.ROUTES,
    *embed.ROUTES,
    by_field(
        {
            "inputs": tokens.TOKENIZE,
            "prompt": tokenize.TOKENIZE,
            "messages": tokenize.TOKENIZE,
            "text": cohere.TOKENIZE,
        }
    ),
    tokens.DECODE,
    *predict.ROUTES,
    embed.EMBED_SPARSE,
    embed.EMBED_HYBRID,
    *baseten.ROUTES,
    *classify.ROUTES,
    *rerank.ROUTES,
    *cohere.ROUTES,
    *score.ROUTES,
    *pooling.ROUTES,
    *tokenize.ROUTES,
    *ollama.ROUTES,
    *weaviate.ROUTES,
)
ROUTES = (
    *_ROUTES,
    *invocations.root_routes(_ROUTES, huggingface.BY_TASK),
    *invocations.vertex_routes(_ROUTES, huggingface.BY_TASK),
)
PLAIN_ROUTES: tuple[PlainRoute, ...] = (
    *ollama.PLAIN_ROUTES,
    *weaviate.PLAIN_ROUTES,
    *openai.PLAIN_ROUTES,
    *vllm.PLAIN_ROUTES,
)
_OLLAMAS = "/api/"  # also /api/generate, which this server does not have
_PLAIN_SHAPES = {route.path: route.error_shape for route in PLAIN_ROUTES}


def plain_error_shape(path: str) -> ErrorShape:
    """The shape of errors at a path of no POST route: as OpenAI's, unless a dialect has it, or all that begin like
    it."""
    usual = text_error if path.startswith(_OLLAMAS) else openai_error
    return _PLAIN_SHAPES.get(path, usual)
