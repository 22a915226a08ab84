"""Every route that takes POST: one line for each dialect."""

from server.dialects import classify, openai, predict_tokens
from server.dialects.rerank import answers as rerank
from server.dialects.route import Route
from server.dialects.tei import embed, hybrid, predict, root, sparse, tokens

_ROUTES: tuple[Route, ...] = (
    *openai.ROUTES,
    *embed.ROUTES,
    *tokens.ROUTES,
    *predict.ROUTES,
    *sparse.ROUTES,
    *hybrid.ROUTES,
    *predict_tokens.ROUTES,
    *classify.ROUTES,
    *rerank.ROUTES,
)
ROUTES = (*_ROUTES, *root.root_routes(_ROUTES))
