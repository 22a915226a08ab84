"""Every route of a dialect: one line for each dialect. ROUTES take POST and a body, PLAIN_ROUTES need no body."""

from server.dialects import classify, infinity, openai, predict_tokens, weaviate
from server.dialects.choice import by_field
from server.dialects.cohere import embed as cohere_embed
from server.dialects.cohere import tokens as cohere_tokens
from server.dialects.ollama import embed as ollama_embed
from server.dialects.ollama import models as ollama_models
from server.dialects.rerank import answers as rerank
from server.dialects.route import ErrorShape, PlainRoute, Route
from server.dialects.tei import embed, hybrid, predict, root, sparse, tokens, vertex
from server.dialects.vllm import plain, pooling, score, tokenize
from server.dialects.writing.openai_shapes import openai_error
from server.dialects.writing.text_errors import text_error

_ROUTES: tuple[Route, ...] = (
    *openai.ROUTES,
    *embed.ROUTES,
    by_field(
        {
            "inputs": tokens.TOKENIZE,
            "prompt": tokenize.TOKENIZE,
            "messages": tokenize.TOKENIZE,
            "text": cohere_tokens.ROUTES[0],
        }
    ),
    tokens.DECODE,
    *predict.ROUTES,
    *sparse.ROUTES,
    *hybrid.ROUTES,
    *predict_tokens.ROUTES,
    *classify.ROUTES,
    *rerank.ROUTES,
    *cohere_embed.ROUTES,
    *cohere_tokens.ROUTES,
    *score.ROUTES,
    *pooling.ROUTES,
    *tokenize.ROUTES,
    *ollama_embed.ROUTES,
    *ollama_models.ROUTES,
    *weaviate.ROUTES,
)
ROUTES = (*_ROUTES, *root.root_routes(_ROUTES), *vertex.vertex_routes(_ROUTES))
PLAIN_ROUTES: tuple[PlainRoute, ...] = (
    *ollama_models.PLAIN_ROUTES,
    *weaviate.PLAIN_ROUTES,
    *infinity.PLAIN_ROUTES,
    *plain.PLAIN_ROUTES,
)
_OLLAMAS = "/api/"  # also /api/generate, which this server does not have
_PLAIN_SHAPES = {route.path: route.error_shape for route in PLAIN_ROUTES}


def plain_error_shape(path: str) -> ErrorShape:
    """Of a path that is no POST route's: OpenAI's, unless a dialect has the path or all that begin like it."""
    usual = text_error if path.startswith(_OLLAMAS) else openai_error
    return _PLAIN_SHAPES.get(path, usual)
