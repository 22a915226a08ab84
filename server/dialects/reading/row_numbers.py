"""Which numbers a row has: how many, and whether it is scaled to length 1. Several names of one option may agree."""

from server.dialects.reading.synonyms import read_one
from server.requests.errors import InvalidRequest


def read_dimensions(wanted: int | None, own: int, *, field: str = "dimensions") -> int | None:
    """Raises InvalidRequest."""
    if wanted is not None and not 1 <= wanted <= own:
        raise InvalidRequest(f"{field} must be from 1 to {own} for this model", param=field)
    return wanted


def read_output_dimension(dimensions: int | None, output_dimension: int | None, own: int) -> int | None:
    """OpenAI's and Voyage's name of it. `dimensions` of 0 are all, as Infinity's clients mean it.

    Raises InvalidRequest.
    """
    dimensions = dimensions or None
    if output_dimension is None:
        return read_dimensions(dimensions, own)
    if dimensions is not None and dimensions != output_dimension:
        raise InvalidRequest("output_dimension differs from dimensions", param="output_dimension")
    return read_dimensions(output_dimension, own, field="output_dimension")


def read_normalize(normalize: bool | None, normalized: bool | None, use_activation: bool | None) -> bool | None:
    """TEI's, Jina's and vLLM's name of it; None = as the model does. Raises InvalidRequest."""
    if normalize is normalized is use_activation:
        return normalize
    return read_one(normalize=normalize, normalized=normalized, use_activation=use_activation)
