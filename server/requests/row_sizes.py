"""How large the rows of a request may be, and how much memory they will take together with the answer."""

from engine.types import ROWS_OF_TOKENS, OutputKind, Results
from server.requests.admission.room import SMALL_BYTES
from server.requests.errors import InvalidRequest
from server.requests.refusals import TOO_LARGE
from server.requests.work import EmbedRequest, Work
from tokenizer_pool.token_ids import TokenizedTexts

MAX_TOKEN_ROW_BYTES = 1 << 28  # of a request's token rows; as JSON they are five times that
MAX_SPARSE_ROW_BYTES = 1 << 28  # of a request's sparse rows; as JSON they are four times that
MAX_COMPARISONS = 1 << 34  # products of two numbers to compare token rows: about a second of a frontend
_EMBEDDED_TOKENS = OutputKind.TOKENS | OutputKind.MULTI_VECTOR
_ANSWER_BYTES = {"float": 12, "msgpack": 9, "base64": 6, "bytes": 4, "npy": 4}  # of a number, at most, about


def check_token_rows(request: Work, tokens: TokenizedTexts) -> None:
    """Raises InvalidRequest, before anything is computed, for more rows than a frontend can write or compare."""
    if not request.outputs & ROWS_OF_TOKENS:
        return
    num_tokens = len(tokens.token_ids)
    dimensions = request.model.token_dimensions or request.model.dimensions
    num_query_tokens = int(tokens.offsets[request.num_queries])
    comparisons = num_query_tokens * (num_tokens - num_query_tokens) * dimensions
    if 4 * num_tokens * dimensions > MAX_TOKEN_ROW_BYTES or comparisons > MAX_COMPARISONS:
        raise InvalidRequest(TOO_LARGE)


def check_sparse_rows(results: Results) -> None:
    """Raises InvalidRequest for more sparse rows than a frontend can write. Their number is known only now."""
    sparse = results.get(OutputKind.SPARSE)
    if sparse is not None and sparse.values.nbytes > MAX_SPARSE_ROW_BYTES:
        raise InvalidRequest(TOO_LARGE)


def bytes_to_hold(request: Work, *, num_tokens: int, encoding: str, is_part: bool = False) -> int:
    """What embeddings or rows of tokens and the answer with them will take, about; 0 for at most 64 KiB of rows, unless
    they are a part of a request's.

    Scores are few, and nobody knows how many numbers sparse rows will have.
    """
    model, outputs = request.model, request.outputs
    pooled = of_tokens = 0  # numbers
    if outputs is OutputKind.POOLED or outputs & OutputKind.POOLED:  # the first is many times as fast
        pooled = request.num_items * model.dimensions
    if outputs is not OutputKind.POOLED and outputs & _EMBEDDED_TOKENS:
        of_tokens = num_tokens * (model.token_dimensions or model.dimensions)
    row_bytes = 4 * (pooled + of_tokens)
    if row_bytes <= SMALL_BYTES and not is_part:
        return 0
    if isinstance(request, EmbedRequest) and (width := request.width) is not None:
        pooled = request.num_items * min(width, model.dimensions)
    return row_bytes + (pooled + of_tokens) * _ANSWER_BYTES.get(encoding, 0)
