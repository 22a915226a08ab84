"""The fields that say how rows are written, by the names of OpenAI, vLLM, Voyage, Jina and Mixedbread."""

from functools import lru_cache

from server.dialects.writing.dtypes import DType
from server.dialects.writing.forms import BYTES, FLOATS, Container, Encoding, Endianness, RowForm
from server.requests.errors import InvalidRequest

_TYPES_AS_FORMATS = (DType.FLOAT16, DType.INT8, DType.UINT8, DType.BINARY, DType.UBINARY)
_FORMATS: dict[str, tuple[Encoding | None, DType | None]] = {
    **{encoding.value: (encoding, None) for encoding in Encoding},
    **{dtype.value: (None, dtype) for dtype in _TYPES_AS_FORMATS},
}
_DTYPES = {"float": DType.FLOAT32, **{dtype.value: dtype for dtype in DType}}  # float is Voyage's and Cohere's word
_ENDIANNESS = {"native": Endianness.LITTLE, **{order.value: order for order in Endianness}}
FORMAT_WORDS, DTYPE_WORDS, ENDIANNESS_WORDS = (
    tuple(_FORMATS),
    tuple(_DTYPES),
    tuple(_ENDIANNESS),
)  # for the OpenAPI page
LISTED_WORDS = frozenset(name for name, (encoding, _) in _FORMATS.items() if encoding not in BYTES)


@lru_cache(maxsize=256)  # most requests of a server ask for the same few forms
def read_form(
    encoding_format: str | tuple[str, ...] | None,
    *,
    embedding_type: str | None = None,  # Jina's; as encoding_format, an encoding or a type
    endianness: str | None = None,
    **dtypes: str | None,  # the other fields that name a type: embed_dtype, output_dtype
) -> RowForm:
    """The form that all fields together ask for. Raises InvalidRequest, naming the field."""
    if isinstance(encoding_format, tuple):
        _check_list(encoding_format)
        if len(encoding_format) > 1:
            beside = {"embedding_type": embedding_type, "endianness": endianness, **dtypes}
            return _read_several(encoding_format, beside)
        encoding_format = encoding_format[0]
    encoding, dtype = _read_format(encoding_format, "encoding_format")
    if embedding_type is not None:
        encoding, dtype = _with_jinas(embedding_type, encoding, dtype)
    for field, name in dtypes.items():
        if name is not None:
            dtype = _same(dtype, read_dtype(name, field), field)
    order = Endianness.LITTLE if endianness is None else _read_endianness(endianness)
    if encoding is None and dtype is None and order is Endianness.LITTLE:
        return FLOATS
    container = Container.RAW if encoding in BYTES else Container.JSON
    return RowForm(encoding or Encoding.FLOAT, dtype or DType.FLOAT32, order, container)


def read_dtype(name: str, field: str) -> DType:
    """Raises InvalidRequest."""
    if name not in _DTYPES:
        raise InvalidRequest(f"{field} must be one of {', '.join(_DTYPES)}", param=field)
    return _DTYPES[name]


def _read_format(name: str | None, field: str) -> tuple[Encoding | None, DType | None]:
    if name is None:
        return None, None
    if name not in _FORMATS:
        raise InvalidRequest(f"{field} must be one of {', '.join(_FORMATS)}", param=field)
    return _FORMATS[name]


def _check_list(names: tuple[str, ...]) -> None:
    """Raises InvalidRequest."""
    if not 0 < len(names) <= len(_FORMATS):
        raise InvalidRequest("encoding_format must not be an empty list, or a long one", param="encoding_format")
    if not LISTED_WORDS.issuperset(names):
        known = ", ".join(name for name in _FORMATS if name in LISTED_WORDS)
        raise InvalidRequest(
            f"encoding_format can have only {known} in a list: JSON has no bytes", param="encoding_format"
        )


def _read_several(names: tuple[str, ...], beside: dict[str, str | None]) -> RowForm:
    """Mixedbread's list. Raises InvalidRequest."""
    for field, value in beside.items():
        if value is not None:
            raise InvalidRequest(f"{field} can't be given beside a list in encoding_format", param=field)
    return RowForm(several=tuple((name, read_form(name)) for name in dict.fromkeys(names)))


def _read_endianness(name: str) -> Endianness:
    if name not in _ENDIANNESS:
        raise InvalidRequest(f"endianness must be one of {', '.join(_ENDIANNESS)}", param="endianness")
    return _ENDIANNESS[name]


def _with_jinas(name: str, encoding: Encoding | None, dtype: DType | None) -> tuple[Encoding | None, DType | None]:
    """`float` is taken for a type here: SDKs put `encoding_format: base64` beside it unasked."""
    field = "embedding_type"
    if name == "float":
        return encoding, _same(dtype, DType.FLOAT32, field)
    other_encoding, other_dtype = _read_format(name, field)
    if other_encoding is not None and encoding not in (None, other_encoding):
        raise InvalidRequest("embedding_type and encoding_format ask for different encodings", param=field)
    return encoding or other_encoding, dtype if other_dtype is None else _same(dtype, other_dtype, field)


def _same(dtype: DType | None, other: DType, field: str) -> DType:
    if dtype not in (None, other):
        raise InvalidRequest(f"{field} asks for another type than the field beside it", param=field)
    return other
