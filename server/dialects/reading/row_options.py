"""The fields that say which rows an answer has, by the names of OpenAI, TEI, vLLM, Voyage, Jina and Mixedbread.

`read_form` says how rows are written, `read_dimensions` and `read_normalize` which numbers they have, and
`read_allows_errors` what stands for an input that can't be embedded. Several names of one option may be given
together if they agree.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

from server.dialects.route import Call
from server.dialects.row_forms import BYTES, FLOATS, Container, DType, Encoding, Endianness, RowForm
from server.requests.errors import InvalidRequest

_TYPES_AS_FORMATS = (DType.FLOAT16, DType.INT8, DType.UINT8, DType.BINARY, DType.UBINARY)
_FORMATS: dict[str, tuple[Encoding | None, DType | None]] = {
    **{encoding.value: (encoding, None) for encoding in Encoding},
    **{dtype.value: (None, dtype) for dtype in _TYPES_AS_FORMATS},
}
_DTYPES = {"float": DType.FLOAT32, **{dtype.value: dtype for dtype in DType}}  # float is Voyage's and Cohere's word
_ENDIANNESS = {"native": Endianness.LITTLE, **{order.value: order for order in Endianness}}
FORMAT_WORDS = tuple(_FORMATS)  # for the OpenAPI page, as the next three
DTYPE_WORDS = tuple(_DTYPES)
ENDIANNESS_WORDS = tuple(_ENDIANNESS)
LISTED_WORDS = frozenset(name for name, (encoding, _) in _FORMATS.items() if encoding not in BYTES)
_Value = TypeVar("_Value")
_HAVE_NAN = frozenset((DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16))


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
    encoding, dtype = None, None
    if encoding_format is not None:
        encoding, dtype = _one_of(_FORMATS, encoding_format, "encoding_format")
    if embedding_type is not None:
        encoding, dtype = _with_jinas(embedding_type, encoding, dtype)
    for field, name in dtypes.items():
        if name is not None:
            dtype = _agreed(dtype, read_dtype(name, field), field)
    order = Endianness.LITTLE if endianness is None else _one_of(_ENDIANNESS, endianness, "endianness")
    if encoding is None and dtype is None and order is Endianness.LITTLE:
        return FLOATS
    container = Container.RAW if encoding in BYTES else Container.JSON
    return RowForm(encoding or Encoding.FLOAT, dtype or DType.FLOAT32, order, container)


def read_dtype(name: str, field: str) -> DType:
    """The type of this name. Raises InvalidRequest."""
    return _one_of(_DTYPES, name, field)


def _one_of(table: Mapping[str, _Value], name: str, field: str) -> _Value:
    if name not in table:
        raise InvalidRequest(f"{field} must be one of {', '.join(table)}", param=field)
    return table[name]


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
    """Read Mixedbread's list of formats. Raises InvalidRequest."""
    for field, value in beside.items():
        if value is not None:
            raise InvalidRequest(f"{field} can't be given beside a list in encoding_format", param=field)
    return RowForm(several=tuple((name, read_form(name)) for name in dict.fromkeys(names)))


def _with_jinas(name: str, encoding: Encoding | None, dtype: DType | None) -> tuple[Encoding | None, DType | None]:
    """`float` is taken for a type here: SDKs put `encoding_format: base64` beside it unasked."""
    field = "embedding_type"
    if name == "float":
        return encoding, _agreed(dtype, DType.FLOAT32, field)
    other_encoding, other_dtype = _one_of(_FORMATS, name, field)
    if other_encoding is not None and encoding not in (None, other_encoding):
        raise InvalidRequest("embedding_type and encoding_format ask for different encodings", param=field)
    return encoding or other_encoding, dtype if other_dtype is None else _agreed(dtype, other_dtype, field)


def _agreed(dtype: DType | None, other: DType, field: str) -> DType:
    if dtype not in (None, other):
        raise InvalidRequest(f"{field} asks for another type than the field beside it", param=field)
    return other


def read_one(**values: _Value | None) -> _Value | None:
    """The value that is given by one or more of the names; None if by none. Raises InvalidRequest."""
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        return None
    (first, wanted), *others = given.items()
    for name, value in others:
        if value != wanted:
            raise InvalidRequest(f"{name} differs from {first}", param=name)
    return wanted


def read_dimensions(wanted: int | None, own: int, *, field: str = "dimensions") -> int | None:
    """The number of dimensions that is asked for, None if none is. Raises InvalidRequest."""
    if wanted is not None and not 1 <= wanted <= own:
        raise InvalidRequest(f"{field} must be from 1 to {own} for this model", param=field)
    return wanted


def read_output_dimension(dimensions: int | None, output_dimension: int | None, own: int) -> int | None:
    """Reads the dimensions by OpenAI's and Voyage's name. `dimensions` of 0 are all, as Infinity's clients mean it.

    Raises InvalidRequest.
    """
    if output_dimension is None:
        return read_dimensions(dimensions or None, own)
    wanted = read_one(dimensions=dimensions or None, output_dimension=output_dimension)
    return read_dimensions(wanted, own, field="output_dimension")


def read_normalize(normalize: bool | None, normalized: bool | None, use_activation: bool | None) -> bool | None:
    """Reads `normalize` by TEI's, Jina's and vLLM's name; None = as the model does. Raises InvalidRequest."""
    if normalize is normalized is use_activation:
        return normalize
    return read_one(normalize=normalize, normalized=normalized, use_activation=use_activation)


def read_allows_errors(wanted: str | None, call: Call, *, are_ragged: bool = False) -> bool:
    """Whether a wrong input fails alone: with an error of its own, and null (or NaN among raw numbers, or no rows of
    tokens if `are_ragged`) in place of its row. The call's form must be set. Raises InvalidRequest.
    """
    if wanted is None or wanted == "fail":
        return False
    if wanted != "null":
        raise InvalidRequest("on_error must be fail or null", param="on_error")
    if call.form.has_rows_alone and call.form.dtype not in _HAVE_NAN and not are_ragged:
        raise InvalidRequest(
            f"on_error can't be null with raw {call.form.dtype.value}, which has no number for a wrong input",
            param="on_error",
        )
    return True
