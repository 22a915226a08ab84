"""Every route that takes POST, of all dialects: one list for the table of paths and the OpenAPI page."""

from server.dialects import classify, openai, predict_tokens, rerank, tei, tei_hybrid, tei_predict, tei_sparse
from server.dialects.tei_root import root_routes
from server.route import Route

_ROUTES: tuple[Route, ...] = (
    *openai.ROUTES,
    *tei.ROUTES,
    *tei_predict.ROUTES,
    *tei_sparse.ROUTES,
    *tei_hybrid.ROUTES,
    *predict_tokens.ROUTES,
    *classify.ROUTES,
    *rerank.ROUTES,
)
ROUTES = (*_ROUTES, *root_routes(_ROUTES))
