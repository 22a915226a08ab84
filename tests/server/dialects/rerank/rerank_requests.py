"""Bodies for the rerank routes, and what is answered to them."""

import json
from collections.abc import Callable
from typing import Any

from engine.model.tasks import Task
from engine.types import OutputKind
from tests.server.edge import Called, Edge, answered, state_with

RERANKER = state_with(OutputKind.LOGITS, task=Task.RERANK, activation="sigmoid", labels=["LABEL_0"])
# The stand-in's raw scores are lengths of pairs: 1 for the query, and these documents'.
DOCUMENTS = ["aa", "b", "cccc", "d"]
TEI = {"query": "q", "texts": DOCUMENTS}
RESULTS = {"query": "q", "documents": DOCUMENTS}
VOYAGE = {"query": "q", "documents": DOCUMENTS, "truncation": True}
MIXEDBREAD = {"query": "q", "input": DOCUMENTS}
# The fields of a result beside its document.
RESULT = {"index", "relevance_score"}
PATHS = ("/rerank", "/v1/rerank", "/v2/rerank", "/v1/reranking")


def post(
    path: str,
    body: Any,
    *,
    prepare: Callable[[Edge], object] = lambda edge: None,
    loaded: Any = RERANKER,
    has_documents_in_objects: bool = True,
    **headers: str,
) -> Called:
    payload = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    how = {"loaded": loaded, "has_documents_in_objects": has_documents_in_objects}
    return answered("POST", path, payload, named, before=prepare, **how)
