"""The packed attention function against plain attention in float64, one sequence at a time."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from engine.rows.shared_prefixes import unique_tokens
from engine.transformers import attention
from engine.transformers.attention import PACKED, UniqueRows, packed_attention
from engine.transformers.visibility import UnsupportedAttention, Visibility
from engine.types import Batch, OutputKind

SEQLENS = (5, 17, 1, 9, 9, 2)
NUM_TOKENS = sum(SEQLENS)
CU_SEQLENS = torch.tensor([0, *itertools.accumulate(SEQLENS)], dtype=torch.int32)
BOUNDS: dict[str, Any] = {"cu_seq_lens_q": CU_SEQLENS, "cu_seq_lens_k": CU_SEQLENS, "max_length_q": max(SEQLENS)}
HEAD_SIZE = 8


def qkv(num_query_heads: int = 4, num_key_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value [1, heads, T, D], large enough for attention to have preferences."""
    generator = torch.Generator().manual_seed(0)
    heads = (num_query_heads, num_key_heads, num_key_heads)
    query, key, value = (2 * torch.randn(1, n, NUM_TOKENS, HEAD_SIZE, generator=generator) for n in heads)
    return query, key, value


def packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    window: int | None = None,
    chunk: int | None = None,
    **arguments: Any,
) -> Tensor:
    layer = nn.Module()
    seen = {layer: Visibility(is_causal, window=window, chunk=chunk)}
    rows, weights = packed_attention(layer, query, key, value, None, **{"visibilities": seen, **BOUNDS, **arguments})
    assert weights is None
    return rows


def plain(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor = CU_SEQLENS, **rule: Any) -> Tensor:
    """What attention is by its definition, token by token."""
    groups = query.shape[1] // key.shape[1]
    rows = torch.zeros(1, NUM_TOKENS, query.shape[1], HEAD_SIZE, dtype=torch.float64)
    for start, end in itertools.pairwise(cu_seqlens.tolist()):
        for head, i in itertools.product(range(query.shape[1]), range(start, end)):
            window, chunk = rule["window"] or NUM_TOKENS, rule.get("chunk") or NUM_TOKENS
            near = [j for j in range(start, end) if abs(i - j) < window and (j <= i or not rule["is_causal"])]
            seen = [j for j in near if (j - start) // chunk == (i - start) // chunk]
            k, v = key[0, head // groups, seen].double(), value[0, head // groups, seen].double()
            scores = k @ query[0, head, i].double() * rule["scaling"]
            if rule["softcap"]:
                scores = rule["softcap"] * torch.tanh(scores / rule["softcap"])
            rows[0, i, head] = scores.softmax(0) @ v
    return rows


def by_definition(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, max_seqlen: int, **rule: Any
) -> Tensor:
    """Stands in for a kernel, which needs a GPU."""
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    return plain(query, key, value, cu_seqlens, softcap=None, **rule)[0].float()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("num_key_heads", [1, 2, 4])
def test_it_is_attention(is_causal: bool, window: int | None, softcap: float | None, num_key_heads: int) -> None:
    tensors = qkv(num_key_heads=num_key_heads)
    expected = plain(*tensors, is_causal=is_causal, window=window, softcap=softcap, scaling=0.3)
    rows = packed(*tensors, is_causal=is_causal, window=window, softcap=softcap, scaling=0.3)
    assert rows.shape == (1, NUM_TOKENS, 4, HEAD_SIZE)
    assert (rows - expected).abs().max() < 1e-5


@pytest.mark.parametrize("chunk", [1, 4, 8, 9, max(SEQLENS), 100])
def test_tokens_of_a_chunk_see_each_other_alone(chunk: int) -> None:
    tensors = qkv()
    expected = plain(*tensors, is_causal=True, window=None, chunk=chunk, softcap=None, scaling=0.3)
    assert (packed(*tensors, is_causal=True, chunk=chunk, scaling=0.3) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("way", ["at once", "in blocks", "by a kernel"])
@pytest.mark.parametrize(
    "rule",
    [
        {"is_causal": True},
        {"is_causal": True, "window": 4},
        {"is_causal": True, "window": 100},
        {"is_causal": True, "chunk": 4},
        {"is_causal": True, "softcap": 2.0},
        {"is_causal": True, "softcap": 2.0, "window": 4},
        {},
    ],
)
def test_unique_rows_attend_as_their_sequences_do(
    rule: dict[str, Any], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefix is followed by a longer one of the same beginning, and by what shares nothing."""

    shared = np.array((0, 3, 0, 0, 6, 1), np.int32)
    cu_seqlens = CU_SEQLENS.numpy()
    found = unique_tokens(Batch("", OutputKind.TOKENS, np.zeros(NUM_TOKENS, np.int32), cu_seqlens, shared=shared))
    assert found is not None
    first, places = torch.from_numpy(found.first), torch.from_numpy(found.places)
    unique = UniqueRows(first, places, np.searchsorted(found.first, cu_seqlens).tolist())
    rows = [tensor[:, :, first] for tensor in qkv()]
    if way == "in blocks":
        monkeypatch.setattr(attention, "_MAX_QUERIES", 2)
    if way == "by a kernel":
        monkeypatch.setattr(attention, "_has_kernel", lambda _: True)
        monkeypatch.setattr(attention, "varlen", by_definition)
    got = packed(*rows, unique=unique, scaling=0.3, **rule)
    whole = plain(
        *(tensor[:, :, places] for tensor in rows),
        **{"is_causal": False, "window": None, "softcap": None, **rule, "scaling": 0.3},
    )
    assert got.shape == (1, len(first), 4, HEAD_SIZE)
    assert (got - whole[:, first]).abs().max() < 1e-5


@pytest.mark.parametrize("longer", [0, 5])
@pytest.mark.parametrize("num_key_heads", [2, 4])
def test_a_distance_bias_is_added_to_the_scores(longer: int, num_key_heads: int) -> None:
    longest = max(SEQLENS) + longer
    table = torch.randn(4, 2 * longest - 1, generator=torch.Generator().manual_seed(1))
    query, key, value = qkv(num_key_heads=num_key_heads)
    rows = packed(query, key, value, distance_bias=table)
    groups = 4 // num_key_heads
    for start, end in itertools.pairwise(CU_SEQLENS.tolist()):
        for head, i in itertools.product(range(4), range(start, end)):
            bias = [table[head, longest - 1 + j - i] for j in range(start, end)]
            k, v = key[0, head // groups, start:end].double(), value[0, head // groups, start:end].double()
            scores = k @ query[0, head, i].double() * HEAD_SIZE**-0.5 + torch.stack(bias).double()
            assert (rows[0, i, head] - scores.softmax(0) @ v).abs().max() < 1e-5


def test_padded_sequences_have_a_distance_bias_in_their_mask() -> None:
    config = BertConfig()
    config._attn_implementation = "sdpa"
    seen = torch.tensor([[1, 1, 1], [1, 1, 0]])

    def arguments(rows: Tensor, max_seqlen: int | None) -> dict[str, Any]:
        return attention.bias_arguments(config, rows, seen, lambda distance: distance[None].float(), max_seqlen)

    found = arguments(torch.zeros(2, 3, 4), None)["attention_mask"].expand(2, 1, 3, 3)
    assert found[0, 0].tolist() == [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]
    assert found[1, 0].tolist() == [[0, 1, -math.inf], [-1, 0, -math.inf], [-2, -1, -math.inf]]
    for_packed = arguments(torch.zeros(1, 5, 4), 3)
    assert for_packed["attention_mask"] is None
    assert for_packed["distance_bias"].tolist() == [[-2, -1, 0, 1, 2]]


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_without_a_scaling_it_is_that_of_the_head_size(softcap: float | None) -> None:
    expected = packed(*qkv(), scaling=HEAD_SIZE**-0.5, softcap=softcap)
    assert torch.equal(packed(*qkv(), softcap=softcap), expected)


@pytest.mark.parametrize(
    "arguments", [{}, {"is_causal": True}, {"window": 4}, {"is_causal": True, "chunk": 4}, {"softcap": 2.0}]
)
def test_neighbours_change_no_bit_of_a_row(arguments: dict[str, Any]) -> None:
    tensors = qkv()
    rows = packed(*tensors, **arguments)
    for start, end in itertools.pairwise(CU_SEQLENS.tolist()):
        own = torch.tensor([0, end - start], dtype=torch.int32)
        bounds: dict[str, Any] = {"cu_seq_lens_q": own, "cu_seq_lens_k": own}
        query, key, value = (tensor[:, :, start:end] for tensor in tensors)
        alone = packed(query, key, value, **bounds, **arguments)
        assert torch.equal(rows[:, start:end], alone)


def test_what_a_layer_says_beside_its_mask_changes_nothing() -> None:
    """Some layers name a window that differs from their mask's by a token."""
    expected = packed(*qkv(), is_causal=True, window=4)
    assert torch.equal(packed(*qkv(), is_causal=True, window=4, sliding_window=5), expected)


@pytest.mark.parametrize(
    "arguments",
    [
        {"position_bias": torch.zeros(1)},
        {"s_aux": torch.zeros(4)},
        {"something_new": True},
        {"distance_bias": torch.zeros(4, 33), "is_causal": True},
        {"distance_bias": torch.zeros(4, 33), "window": 4},
        {"distance_bias": torch.zeros(4, 33), "softcap": 2.0},
        {"distance_bias": torch.zeros(4, 33), "unique": UniqueRows(CU_SEQLENS, CU_SEQLENS, CU_SEQLENS.tolist())},
        {"dropout": 0.1},
        {"visibilities": {}},
        {"visibilities": None},
        {"cu_seq_lens_q": None},
        {"cu_seq_lens_k": None},
        {"max_length_q": None},
        {"cu_seq_lens_k": CU_SEQLENS[:-1]},
    ],
)
def test_what_it_cannot_honour_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedAttention):
        packed(*qkv(), **arguments)


def test_a_mask_and_keys_of_other_tokens_are_refused() -> None:
    query, key, value = qkv()
    mask = torch.zeros(1, 1, NUM_TOKENS, NUM_TOKENS)
    with pytest.raises(UnsupportedAttention):
        packed_attention(nn.Module(), query, key, value, mask, **BOUNDS)
    with pytest.raises(UnsupportedAttention):
        packed(query, key[:, :, 1:], value[:, :, 1:])


def test_what_changes_nothing_is_let_through() -> None:
    harmless: dict[str, Any] = {"position_ids": torch.zeros(1), "max_length_q": 17, "use_cache": False, "s_aux": None}
    assert torch.equal(packed(*qkv(), **harmless), packed(*qkv()))


def test_transformers_knows_the_function_and_makes_no_masks_for_it() -> None:
    attention.register()
    attention.register()
    assert ALL_ATTENTION_FUNCTIONS[PACKED] is packed_attention
    assert PACKED not in ALL_MASK_ATTENTION_FUNCTIONS
    assert not any(word in PACKED for word in ("flash", "sdpa", "flex_attention", "paged|"))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, 4, max(SEQLENS)])
def test_a_kernel_gets_what_the_loop_works_on(
    is_causal: bool, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:

    def kernel(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, max_seqlen: int, **rule: Any) -> Tensor:
        assert cu_seqlens is on_device
        assert max_seqlen == max(SEQLENS)
        return by_definition(query, key, value, cu_seqlens, max_seqlen, **rule)

    tensors = qkv()
    arguments: dict[str, Any] = {"is_causal": is_causal, "window": window, "scaling": 0.3}
    expected = packed(*tensors, **arguments)
    on_device = CU_SEQLENS.clone()
    monkeypatch.setattr(attention, "_has_kernel", lambda _: True)
    monkeypatch.setattr(attention, "varlen", kernel)
    assert (packed(*tensors, cu_seq_lens_q=on_device, **arguments) - expected).abs().max() < 1e-5


def test_a_kernel_gets_chunks_as_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, max_seqlen: int, **rule: Any) -> Tensor:
        assert (cu_seqlens.tolist(), cu_seqlens.dtype, max_seqlen) == (ends, torch.int32, 8)
        assert (rule["is_causal"], rule["window"]) == (True, None)
        return query

    ends = [0, 5, 13, 21, 22, 23, 31, 32, 40, 41, 43]
    monkeypatch.setattr(attention, "_has_kernel", lambda _: True)
    monkeypatch.setattr(attention, "varlen", kernel)
    packed(*qkv(), is_causal=True, chunk=8)


def test_no_kernel_has_a_softcap(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = packed(*qkv(), softcap=2.0)
    monkeypatch.setattr(attention, "_has_kernel", lambda _: True)
    assert torch.equal(packed(*qkv(), softcap=2.0), expected)


def test_the_loop_reads_no_memory_of_a_device() -> None:
    """What has no values to read stands in for the bounds there."""
    on_device = CU_SEQLENS.to("meta")
    assert torch.equal(packed(*qkv(), cu_seq_lens_q=on_device), packed(*qkv()))
