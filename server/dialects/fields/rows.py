"""What the rows of an answer look like: how they are written, which numbers they have, and what stands for an input
that can't be embedded. Several names of one option may be given together if they agree.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, TypeVar

from server.dialects.fields.field import Fields, Schema, option
from server.dialects.route import Call
from server.dialects.row_answers import BYTES, FLOATS, RAW_FLOATS, Container, DType, Encoding, Endianness, RowForm
from server.requests.errors import InvalidRequest
from server.requests.models import ServedModel

_Value = TypeVar("_Value")
_TYPES_AS_FORMATS = (DType.FLOAT16, DType.INT8, DType.UINT8, DType.BINARY, DType.UBINARY)
_FORMATS: dict[str, Encoding | DType] = {kind.value: kind for kind in (*Encoding, *_TYPES_AS_FORMATS)}
_DTYPES = {"float": DType.FLOAT32, **{dtype.value: dtype for dtype in DType}}  # float is Voyage's and Cohere's word
_ENDIANNESS = {"native": Endianness.LITTLE, **{order.value: order for order in Endianness}}
_LISTED = tuple(name for name, kind in _FORMATS.items() if kind not in BYTES)
_HAVE_NAN = frozenset((DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16))
ENCODING_FORMAT = "encoding_format"
ON_ERROR = "on_error"
_Formats = option(
    "how rows are written: an encoding, or a type of numbers",
    neutral=("float", ["float"]),
    words=tuple(_FORMATS),
    listed=frozenset(_LISTED),
)
_EmbedDtype = option("the type of the numbers", by="vLLM", neutral=("float32",), words=tuple(_DTYPES))
_Endianness = option("the order of bytes", by="vLLM", neutral=("native", "little"), words=tuple(_ENDIANNESS))
_Normalize = option("whether rows have length 1", by="TEI")
_Activation = option("whether rows have length 1, and scores their activation", by="vLLM", neutral=(True,))


def _own_dimensions(model: ServedModel) -> Schema:
    usual = {} if model.truncate_dim is None else {"default": model.truncate_dim}
    return {"maximum": model.dimensions, **usual}


_SHORTER = "only the first numbers of each row"
_Dimensions = option(_SHORTER, neutral=(0,), least=1, of_model=_own_dimensions)
_DimensionsOrAll = option(_SHORTER, neutral=(0,), least=0, of_model=_own_dimensions)
_OutputDimension = option(_SHORTER, by="Voyage, Cohere", least=1, of_model=_own_dimensions)


class FormFields(Fields, kw_only=True):
    """How rows are written, by the names of OpenAI and vLLM."""

    embed_dtype: Annotated[str | None, _EmbedDtype] = None
    endianness: Annotated[str | None, _Endianness] = None
    encoding_format: Annotated[str | None, _Formats] = None


class NormalizeField(Fields, kw_only=True):
    """Whether rows have length 1."""

    normalize: Annotated[bool | None, _Normalize] = None


class ActivationField(Fields, kw_only=True):
    """Whether what a model computes is finished."""

    use_activation: Annotated[bool | None, _Activation] = None


class DimensionsField(Fields, kw_only=True):
    """How many numbers a row has."""

    dimensions: Annotated[int | None, _Dimensions] = None


class DimensionsOrAllField(Fields, kw_only=True):
    """How many numbers a row has; 0 are all, as Infinity's clients mean it."""

    dimensions: Annotated[int | None, _DimensionsOrAll] = None


class OutputDimensionField(Fields, kw_only=True):
    """How many numbers a row has."""

    output_dimension: Annotated[int | None, _OutputDimension] = None


class EveryRowFields(Fields, kw_only=True):
    """What rows look like, by the names of all dialects."""

    normalize: Annotated[bool | None, _Normalize] = None
    use_activation: Annotated[bool | None, _Activation] = None
    normalized: Annotated[bool | None, option("whether rows have length 1", by="Jina, Mixedbread")] = None
    dimensions: Annotated[int | None, _DimensionsOrAll] = None
    output_dimension: Annotated[int | None, _OutputDimension] = None
    embed_dtype: Annotated[str | None, _EmbedDtype] = None
    endianness: Annotated[str | None, _Endianness] = None
    encoding_format: Annotated[str | tuple[str, ...] | None, _Formats] = None  # Mixedbread's may be a list
    output_dtype: Annotated[
        str | None, option("the type of the numbers", by="Voyage", neutral=("float",), words=tuple(_DTYPES))
    ] = None
    embedding_type: Annotated[
        str | None,
        option("how rows are written, as encoding_format", by="Jina", neutral=("float",), words=tuple(_FORMATS)),
    ] = None


def read_form(fields: FormFields) -> RowForm:
    """The form that all fields together ask for. Raises InvalidRequest, naming the field."""
    return _form(fields.encoding_format, endianness=fields.endianness, embed_dtype=fields.embed_dtype)


def read_every_form(fields: EveryRowFields) -> RowForm:
    """Does what `read_form` does. Raises InvalidRequest, naming the field."""
    return _form(
        fields.encoding_format,
        embedding_type=fields.embedding_type,
        endianness=fields.endianness,
        embed_dtype=fields.embed_dtype,
        output_dtype=fields.output_dtype,
    )


@lru_cache(maxsize=256)  # most requests of a server ask for the same few forms
def _form(
    encoding_format: str | tuple[str, ...] | None,
    *,
    embedding_type: str | None = None,  # as encoding_format, an encoding or a type
    endianness: str | None = None,
    **dtypes: str | None,  # the other fields that name a type
) -> RowForm:
    if isinstance(encoding_format, tuple):
        _check_list(encoding_format)
        if len(encoding_format) > 1:
            beside = {"embedding_type": embedding_type, "endianness": endianness, **dtypes}
            if (field := next((name for name, value in beside.items() if value is not None), None)) is not None:
                raise InvalidRequest(f"{field} can't be given beside a list in encoding_format", param=field)
            return RowForm(several=tuple((name, _form(name)) for name in dict.fromkeys(encoding_format)))
        encoding_format = encoding_format[0]
    encoding, dtype = _encoding_and_dtype(encoding_format, embedding_type)
    for field, name in dtypes.items():
        if name is not None:
            dtype = _agreed(dtype, _one_of(_DTYPES, name, field), field)
    order = Endianness.LITTLE if endianness is None else _one_of(_ENDIANNESS, endianness, "endianness")
    if encoding is None and dtype is None and order is Endianness.LITTLE:
        return FLOATS
    container = Container.RAW if encoding in BYTES else Container.JSON
    return RowForm(encoding or Encoding.FLOAT, dtype or DType.FLOAT32, order, container)


def _check_list(names: tuple[str, ...]) -> None:
    if not 0 < len(names) <= len(_FORMATS):
        raise InvalidRequest("encoding_format must not be an empty list, or a long one", param=ENCODING_FORMAT)
    if not set(_LISTED).issuperset(names):
        raise InvalidRequest(
            f"encoding_format can have only {', '.join(_LISTED)} in a list: JSON has no bytes", param=ENCODING_FORMAT
        )


def _encoding_and_dtype(
    encoding_format: str | None, embedding_type: str | None
) -> tuple[Encoding | None, DType | None]:
    """What the two fields name that may be either."""
    kind = None if encoding_format is None else _one_of(_FORMATS, encoding_format, ENCODING_FORMAT)
    encoding, dtype = (kind, None) if isinstance(kind, Encoding) else (None, kind)
    field = "embedding_type"
    if embedding_type is None:
        return encoding, dtype
    # `float` is taken for a type here: SDKs put `encoding_format: base64` beside it unasked.
    other = DType.FLOAT32 if embedding_type == "float" else _one_of(_FORMATS, embedding_type, field)
    if isinstance(other, DType):
        return encoding, _agreed(dtype, other, field)
    if encoding not in (None, other):
        raise InvalidRequest("embedding_type and encoding_format ask for different encodings", param=field)
    return other, dtype


def _one_of(table: Mapping[str, _Value], name: str, field: str) -> _Value:
    if name not in table:
        raise InvalidRequest(f"{field} must be one of {', '.join(table)}", param=field)
    return table[name]


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


def read_output_dimension(fields: OutputDimensionField, own: int) -> int | None:
    """Does what `read_dimensions` does. Raises InvalidRequest."""
    return read_dimensions(fields.output_dimension, own, field="output_dimension")


def read_every_dimensions(fields: EveryRowFields, own: int) -> int | None:
    """Does what `read_dimensions` does, by either name. Raises InvalidRequest."""
    dimensions, output_dimension = fields.dimensions or None, fields.output_dimension
    if output_dimension is None:
        return read_dimensions(dimensions, own)
    wanted = read_one(dimensions=dimensions, output_dimension=output_dimension)
    return read_dimensions(wanted, own, field="output_dimension")


def read_normalize(fields: EveryRowFields) -> bool | None:
    """Whether rows have length 1; None = as the model does. Raises InvalidRequest."""
    normalize, normalized, use_activation = fields.normalize, fields.normalized, fields.use_activation
    if normalize is normalized is use_activation:
        return normalize
    return read_one(normalize=normalize, normalized=normalized, use_activation=use_activation)


class OnErrorField(Fields, kw_only=True):
    """What one wrong input does."""

    on_error: Annotated[
        str | None, option("whether a wrong input fails alone", by="ours", neutral=("fail",), words=("null", "fail"))
    ] = None


def read_allows_errors(fields: OnErrorField, call: Call, *, are_ragged: bool = False) -> bool:
    """Whether a wrong input fails alone: with an error of its own, and null (or NaN among raw numbers, or no rows of
    tokens if `are_ragged`) in place of its row. The call's form must be set. Raises InvalidRequest.
    """
    wanted = fields.on_error
    if wanted is None or wanted == "fail":
        return False
    if wanted != "null":
        raise wrong_on_error("must be fail or null")
    if call.form.has_rows_alone and call.form.dtype not in _HAVE_NAN and not are_ragged:
        raise wrong_on_error(f"can't be null with raw {call.form.dtype.value}, which has no number for a wrong input")
    return True


def wrong_on_error(problem: str) -> InvalidRequest:
    """The error about it."""
    return InvalidRequest(f"{ON_ERROR} {problem}", param=ON_ERROR)


_SCORE_FORMS = {None: FLOATS, "float": FLOATS, "bytes": RAW_FLOATS}


class ScoreFormField(Fields, kw_only=True):
    """How scores are written."""

    encoding_format: Annotated[
        str | None, option("how scores are written", neutral=("float", ["float"]), words=("float", "bytes"))
    ] = None


def read_score_form(fields: ScoreFormField) -> RowForm:
    """The form of the scores. Raises InvalidRequest."""
    if fields.encoding_format not in _SCORE_FORMS:
        raise InvalidRequest("encoding_format must be float or bytes", param=ENCODING_FORMAT)
    return _SCORE_FORMS[fields.encoding_format]
