"""Norms (RMS) and rotates heads of queries and keys in place, in rows that also hold other numbers."""

import triton
import triton.language as tl
from torch import Tensor

from engine.fused.kernels.rows import num_warps_for, power_of_two, row_stride
from engine.fused.model.ops import Heads, Norm

_NUMBERS = 2048  # a program's at most, unless a head is wider
_MIN_HEADS = 4


def rotate(rows: Tensor, positions: Tensor, angles: Tensor | None, heads: Heads) -> None:
    """See Ops. Bytes a row of (N + H) heads of D two-byte numbers: 4 (N + H) D, or without norms only the
    rotated share of it, and 4 for each angle's cosine and sine.

    A program rotates some heads of one row. All programs of a row but the first find the angles in the cache.
    """
    dim, num_heads = heads.head_dim, heads.num_query_heads + heads.num_key_heads
    rotated = dim if angles is None else angles.shape[1]
    assert rotated % 2 == 0, rotated
    num_at_once = _heads_at_once(num_heads, dim)
    _rotate[(len(rows), triton.cdiv(num_heads, num_at_once))](
        rows,
        positions,
        angles,
        _weight(heads.query_norm),
        _weight(heads.key_norm),
        row_stride(rows),
        0 if angles is None else row_stride(angles),
        heads.query_norm.eps if heads.query_norm else 1.0,
        heads.key_norm.eps if heads.key_norm else 1.0,
        NUM_QUERY_HEADS=heads.num_query_heads,
        NUM_HEADS=num_heads,
        DIM=dim,
        HALF=rotated // 2,
        HEADS=num_at_once,
        HALF_BLOCK=power_of_two(rotated // 2),
        REST_BLOCK=power_of_two(dim - rotated),
        num_warps=num_warps_for(num_at_once * power_of_two(dim)),
    )


def _heads_at_once(num_heads: int, dim: int) -> int:
    """The largest power of two that divides the heads, within limits."""
    divisor = num_heads & -num_heads
    return max(_MIN_HEADS, min(divisor, _NUMBERS // power_of_two(dim)))


def _weight(norm: Norm | None) -> Tensor | None:
    assert norm is None or (norm.kind == "rms" and norm.bias is None), norm
    return norm.weight if norm else None


@triton.jit(do_not_specialize_on_alignment=["positions"])
def _rotate(
    rows: tl.tensor,
    positions: tl.tensor,
    angles: tl.tensor,
    query_weight: tl.tensor,
    key_weight: tl.tensor,
    stride: tl.tensor,
    angles_stride: tl.tensor,
    query_eps: tl.tensor,
    key_eps: tl.tensor,
    NUM_QUERY_HEADS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    is_query = head < NUM_QUERY_HEADS
    column = tl.broadcast_to(tl.arange(0, HALF_BLOCK)[None, :], (HEADS, HALF_BLOCK))
    rest_column = tl.broadcast_to(2 * HALF + tl.arange(0, REST_BLOCK)[None, :], (HEADS, REST_BLOCK))
    mask = (head < NUM_HEADS) & (column < HALF)
    rest_mask = (head < NUM_HEADS) & (rest_column < DIM)
    source = rows + row * stride + head * DIM
    first = tl.load(source + column, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + column, mask=mask, other=0.0).to(tl.float32)

    if query_weight is not None or key_weight is not None:
        squares = tl.sum(first * first + second * second, axis=1)[:, None]
        if DIM > 2 * HALF:
            rest = tl.load(source + rest_column, mask=rest_mask, other=0.0).to(tl.float32)
            squares += tl.sum(rest * rest, axis=1)[:, None]
        inverse = tl.rsqrt(squares / DIM + tl.where(is_query, query_eps, key_eps))
        if query_weight is None:
            inverse = tl.where(is_query, 1.0, inverse)
        if key_weight is None:
            inverse = tl.where(is_query, inverse, 1.0)
        first *= inverse * _weights(query_weight, key_weight, is_query, column, mask)
        second *= inverse * _weights(query_weight, key_weight, is_query, HALF + column, mask)
        if DIM > 2 * HALF:
            rest *= inverse * _weights(query_weight, key_weight, is_query, rest_column, rest_mask)
            tl.store(source + rest_column, rest.to(rows.dtype.element_ty), mask=rest_mask)

    if angles is not None:
        angle = angles + tl.load(positions + row).to(tl.int64) * angles_stride
        cosine = tl.load(angle + column, mask=mask, other=0.0)
        sine = tl.load(angle + HALF + column, mask=mask, other=0.0)
        turned = first * cosine - second * sine
        second = second * cosine + first * sine
        first = turned
    tl.store(source + column, first.to(rows.dtype.element_ty), mask=mask)
    tl.store(source + HALF + column, second.to(rows.dtype.element_ty), mask=mask)


@triton.jit
def _weights(
    query_weight: tl.tensor, key_weight: tl.tensor, is_query: tl.tensor, column: tl.tensor, mask: tl.tensor
) -> tl.tensor:
    """float32 of the shape of `column`: the weights of each head's norm, 1 if it has none.

    Each head loads them anew, from the cache; as one row for all, they would go through shared memory.
    """
    if query_weight is None:
        return tl.load(key_weight + column, mask=mask & (~is_query), other=1.0)
    elif key_weight is None:
        return tl.load(query_weight + column, mask=mask & is_query, other=1.0)
    else:
        return tl.load(tl.where(is_query, query_weight + column, key_weight + column), mask=mask, other=1.0)
