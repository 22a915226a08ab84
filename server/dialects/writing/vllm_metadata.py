"""vLLM's `metadata` header, which says where each row stands in an answer of raw bytes.

vllm/entrypoints/pooling, `encoding_format: "bytes"`. It grows with the rows and clients limit their headers, aiohttp
for one to 8,190 bytes; so it is left out where it would be large. Our own headers say the same in few bytes.
"""

import json
import time
from functools import lru_cache

from server.dialects.route import Answer, Headers
from server.dialects.writing.forms import Container, Encoding, RowForm
from server.requests.work import Embedded

_MAX_BYTES = 6000
_MIN_ROW_BYTES = 80  # of the header, for each row
_ROW = '{"index":%d,"embed_dtype":"%s","endianness":"%s","start":%d,"end":%d,"shape":[%d]}'
_ALL = '{"id":"embd-%s","created":%d,"model":%s,"data":[%s],"usage":{"prompt_tokens":%d,"total_tokens":%d}}'


def metadata_header(answer: Answer, embedded: Embedded, form: RowForm, *, model: str, request_id: str) -> Headers:
    """The header of an answer of rows alone, or none: for other forms, and where it would be too large."""
    num_rows = len(embedded.rows)
    if form.encoding is not Encoding.BYTES or form.container is not Container.RAW:
        return []
    if num_rows * _MIN_ROW_BYTES > _MAX_BYTES:
        return []
    size = len(answer.body) // num_rows
    width = size // form.dtype.num_bytes
    of_all = (form.dtype.value, form.endianness.value)
    rows = ",".join([_ROW % (index, *of_all, index * size, (index + 1) * size, width) for index in range(num_rows)])
    num_tokens = embedded.num_tokens
    value = (_ALL % (request_id, time.time(), _in_json(model), rows, num_tokens, num_tokens)).encode()
    return [(b"metadata", value)] if len(value) <= _MAX_BYTES else []


@lru_cache(maxsize=64)
def _in_json(name: str) -> str:
    """With nothing but ASCII, as headers must be."""
    return json.dumps(name)
