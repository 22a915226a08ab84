"""Every route of a dialect: one line for each dialect. ROUTES take POST and a body, PLAIN_ROUTES need no body."""

from server.dialects import classify, infinity, openai, predict_tokens, weaviate
from server.dialects.choice import by_field
from server.dialects.cohere import embed as cohere_embed
from server.dialects.cohere import tokens as cohere_tokens
from server.dialects.ollama import embed as ollama_embed
from server.dialects.ollama import models as ollama_models
from server.dialects.rerank import answers as rerank
from server.dialects.route import PlainRoute, Route
from server.dialects.tei import embed, hybrid, predict, root, sparse, tokens, vertex
from server.dialects.vllm import plain, pooling, score, tokenize

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
