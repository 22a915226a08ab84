"""vLLM's `metadata` header, which says where each row stands in an answer of raw bytes.

vllm/entrypoints/pooling, `encoding_format: "bytes"`. It grows with the rows and clients limit their headers, aiohttp
for one to 8,190 bytes; so it is left out where it would be large. Our own headers say the same in few bytes.
"""

import json
import time

from server.dialects.route import Answer, Headers
from server.dialects.writing.forms import Container, Encoding, RowForm
from server.requests.work import Embedded

_MAX_BYTES = 6000
_MIN_ROW_BYTES = 80  # of the header, for each row


def metadata_header(answer: Answer, embedded: Embedded, form: RowForm, *, model: str, request_id: str) -> Headers:
    """The header of an answer of rows alone, or none: for other forms, and where it would be too large."""
    num_rows = len(embedded.rows)
    if form.encoding is not Encoding.BYTES or form.container is not Container.RAW:
        return []
    if num_rows * _MIN_ROW_BYTES > _MAX_BYTES:
        return []
    size = len(answer.body) // num_rows
    shape = [size // form.dtype.num_bytes]
    rows = [
        {
            "index": index,
            "embed_dtype": form.dtype.value,
            "endianness": form.endianness.value,
            "start": index * size,
            "end": (index + 1) * size,
            "shape": shape,
        }
        for index in range(num_rows)
    ]
    usage = {"prompt_tokens": embedded.num_tokens, "total_tokens": embedded.num_tokens}
    content = {"id": f"embd-{request_id}", "created": int(time.time()), "model": model, "data": rows, "usage": usage}
    value = json.dumps(content, separators=(",", ":")).encode()  # with nothing but ASCII, as headers must
    return [(b"metadata", value)] if len(value) <= _MAX_BYTES else []
