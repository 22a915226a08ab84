"""vLLM's `metadata` header, which says where the row or rows of each item stand in an answer of raw bytes.

vllm/entrypoints/pooling, `encoding_format: "bytes"`. It grows with the rows and clients limit their headers, aiohttp
for one to 8,190 bytes; so it is left out where it would be large. Our own headers say the same in few bytes.
"""

import json
import time
from functools import lru_cache
from itertools import pairwise

from server.dialects.route import Answer, Headers
from server.dialects.writing.forms import Container, Encoding, RowForm
from server.requests.work import Embedded

_MAX_BYTES = 6000
_MIN_ROW_BYTES = 80  # of the header, for each item
_ROW = '{"index":%d,"embed_dtype":"%s","endianness":"%s","start":%d,"end":%d,"shape":[%s]}'
_ALL = '{"id":"embd-%s","created":%d,"model":%s,"data":[%s],"usage":{"prompt_tokens":%d,"total_tokens":%d}}'


def metadata_header(answer: Answer, embedded: Embedded, form: RowForm, *, model: str, request_id: str) -> Headers:
    """The header of an answer of rows alone, or none: for other forms, and where it would be too large."""
    num_items = len(embedded.truncated)
    if form.encoding is not Encoding.BYTES or form.container is not Container.RAW:
        return []
    if num_items * _MIN_ROW_BYTES > _MAX_BYTES:
        return []
    size = len(answer.body) // max(1, len(embedded.rows))
    width = size // form.dtype.num_bytes
    of_all = (form.dtype.value, form.endianness.value)
    is_ragged = embedded.offsets is not None
    offsets = range(num_items + 1) if embedded.offsets is None else embedded.offsets.tolist()
    rows = ",".join(
        _ROW % (index, *of_all, start * size, stop * size, f"{stop - start},{width}" if is_ragged else width)
        for index, (start, stop) in enumerate(pairwise(offsets))
    )
    num_tokens = embedded.num_tokens
    value = (_ALL % (request_id, time.time(), _in_json(model), rows, num_tokens, num_tokens)).encode()
    return [(b"metadata", value)] if len(value) <= _MAX_BYTES else []


@lru_cache(maxsize=64)
def _in_json(name: str) -> str:
    """With nothing but ASCII, as headers must be."""
    return json.dumps(name)
