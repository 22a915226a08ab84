"""Every route that takes POST, of all dialects: one list for the table of paths and the OpenAPI page."""

from server.dialects import openai, tei
from server.route import Route

ROUTES: tuple[Route, ...] = (*openai.ROUTES, *tei.ROUTES)
