"""The answer of /pooling: for each item a row, or the rows of its tokens.

Raw rows of tokens have vLLM's layout, one item after the other, if the body asks for bytes, so that vLLM's clients can
read them. If only the `accept` header asks for them they have ours, with offsets, see writing/ragged.py.
"""

from collections.abc import AsyncIterator
from itertools import pairwise

import msgspec
import pybase64

from server.dialects.route import Answer, Call
from server.dialects.vllm.shared import end_of_list, start_of_list
from server.dialects.writing.forms import FLOATS, Encoding, RowForm
from server.dialects.writing.openai_shapes import error_fields
from server.dialects.writing.ragged import ragged_answer
from server.dialects.writing.rows import all_row_bytes, as_bytes, as_json, as_list, headers, rows_alone, rows_or_null
from server.dialects.writing.vllm_metadata import metadata_header
from server.requests.errors import InvalidRequest
from server.requests.models import ServedModel
from server.requests.time_slices import TimeSlice
from server.requests.work import Embedded


async def write_pooled(call: Call, model: ServedModel, embedded: Embedded, *, wanted: RowForm) -> Answer:
    """`wanted` is the form by the body alone. Long work is done in slices. Raises InvalidRequest."""
    form = call.form or FLOATS
    if form.has_rows_alone:
        return await _alone(call, model, embedded, wanted)
    values: AsyncIterator[bytes | bytearray]
    values = rows_or_null(embedded, form) if embedded.offsets is None else _of_tokens(embedded, form)
    items, time_slice, failed = list[bytes | bytearray](), TimeSlice(), embedded.failed or {}
    async for value in values:
        error = failed.get(len(items))
        beside = b"" if error is None else b',"error":' + msgspec.json.encode(error_fields(error))
        items.append(b'{"index":%d,"object":"pooling","data":%b%b}' % (len(items), bytes(value), beside))
        await time_slice.end_if_over()
    end = end_of_list(num_tokens=embedded.num_tokens, num_truncated=embedded.num_truncated)
    content = b"".join((start_of_list(call, model, b"pool-"), as_list(items), end))
    return Answer(200, headers(embedded, form), content)


async def _of_tokens(embedded: Embedded, form: RowForm) -> AsyncIterator[bytes | bytearray]:
    """A JSON value for the rows of each item: a list of rows, or the bytes of all of them."""
    assert embedded.offsets is not None
    for start, stop in pairwise(embedded.offsets.tolist()):
        rows = embedded.rows[start:stop]
        if form.encoding is Encoding.BASE64:
            yield b'"%b"' % pybase64.b64encode(as_bytes(await all_row_bytes(rows, form)))
        else:
            yield await as_json(rows, form)


async def _alone(call: Call, model: ServedModel, embedded: Embedded, wanted: RowForm) -> Answer:
    form = call.form or FLOATS
    if embedded.offsets is not None and wanted.encoding not in (Encoding.BYTES, Encoding.BYTES_ONLY):
        return await ragged_answer(embedded, form, beside=[])
    answer = await rows_alone(embedded, form)
    metadata = metadata_header(answer, embedded, form, model=model.name, request_id=call.trace.request_id)
    if embedded.offsets is not None and form.encoding is Encoding.BYTES and not metadata:
        raise InvalidRequest(
            "the metadata header would be too long for its readers; send fewer inputs, or ask for bytes_only",
            param="encoding_format",
        )
    answer.headers.extend(metadata)
    return answer
