"""Every route that takes POST, of all dialects: one list for the table of paths and the OpenAPI page."""

from server.dialects import classify, openai, predict_tokens
from server.dialects.rerank import routes
from server.dialects.tei import embed, hybrid, predict, sparse
from server.dialects.tei.root import root_routes
from server.http.route import Route

_ROUTES: tuple[Route, ...] = (
    *openai.ROUTES,
    *embed.ROUTES,
    *predict.ROUTES,
    *sparse.ROUTES,
    *hybrid.ROUTES,
    *predict_tokens.ROUTES,
    *classify.ROUTES,
    *routes.ROUTES,
)
ROUTES = (*_ROUTES, *root_routes(_ROUTES))
