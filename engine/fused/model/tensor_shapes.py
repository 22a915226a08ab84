"""The shapes that a Spec gives its tensors; the letters are those of engine.fused.model.spec."""

from engine.fused.model.spec import Spec


def shape_of(spec: Spec, name: str) -> tuple[int, ...] | None:
    """Of a tensor by our name; None where the Spec says nothing of it."""
    *_, stem, kind = ("", *name.split("."))
    if stem.endswith("norm") and kind in ("weight", "bias"):
        return (_width(spec, stem),)
    shape = _tables(spec).get(name) or _linears(spec).get(stem)
    return shape[:1] if shape and kind == "bias" else shape


def _width(spec: Spec, norm: str) -> int:
    if norm in ("query_norm", "key_norm"):
        return spec.head_dim
    return _embedding_size(spec) if norm == "embedding_norm" else spec.hidden_size


def _tables(spec: Spec) -> dict[str, tuple[int, ...]]:
    width = _embedding_size(spec)
    return {
        "words": (spec.vocab_size, width),
        "positions": (spec.num_positions, width),
        "types": (spec.num_types, width),
    }


def _linears(spec: Spec) -> dict[str, tuple[int, ...]]:
    heads, hidden = spec.num_heads * spec.head_dim, spec.hidden_size
    return {
        "projection": (hidden, _embedding_size(spec)),
        "qkv": (heads + 2 * spec.num_kv_heads * spec.head_dim, hidden),
        "o": (hidden, heads),
        "up": (spec.intermediate_size * (2 if spec.is_gated else 1), hidden),
        "down": (hidden, spec.intermediate_size),
    }


def _embedding_size(spec: Spec) -> int:
    return spec.hidden_size if spec.embedding_size is None else spec.embedding_size
