"""Every route of a dialect: one line for each dialect. ROUTES take POST and a body, PLAIN_ROUTES need no body."""

from server.dialects import classify, infinity, openai, predict_tokens
from server.dialects.rerank import answers as rerank
from server.dialects.route import PlainRoute, Route
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
PLAIN_ROUTES: tuple[PlainRoute, ...] = (*infinity.PLAIN_ROUTES,)
