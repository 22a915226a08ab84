"""SPARSE rows: the largest score of each word over a sequence's tokens, and of these the ones that are not zero.

All scores of 8,192 tokens and 250,002 words would take 4 GB in two-byte numbers, and nearly all are below 0. So a
program multiplies some tiles' rows by some words and keeps the products to itself. Only the largest of each tile goes
to memory, by an atomic maximum with those of the sequence's other tiles. Maxima are kept as bits, which compare as the
numbers do, since none is negative; NaN is above all of them. The order in which programs come does not matter.

Maxima of all sequences may be too many, too: 1 GB for 1,024 texts and 250,002 words. So the words are taken in slices.
The maxima of a slice that are not zero are counted in chunks, the counts are summed, and each chunk writes its entries
behind those before it. Of several slices the entries lie slice by slice, and are then moved to lie sequence by
sequence. How many there are only the device knows. The buffer has room for `_MAX_ENTRIES`; what does not fit is left
out, and the counts tell.

Slices of sequences would need no move. But tiles come in the order of their lengths, and the host does not know which
are whose. So each slice would launch programs for all tiles, or multiply again what is beside its own in a program.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.fused.kernels.rows import magnitude_bits, row_stride
from engine.fused.model.ops import TILE_FIELDS, RaggedRows, Tiles, WordScores

_ROWS = 128  # of tokens that a program multiplies
_WORDS = 128  # by which it multiplies them, at most
_CHUNK = 1024  # words looked through at a time
_MAX_MAXIMA = 1 << 24  # of a slice: 64 MB
_MAX_ENTRIES = 1 << 23  # 64 MB; more than one sequence can have


def vocabulary_weights(
    hidden: Tensor,
    scores: WordScores,
    tiles: Tiles,
    cu_seqlens: Tensor,
    *,
    max_maxima: int = _MAX_MAXIMA,
    max_entries: int = _MAX_ENTRIES,
) -> RaggedRows:
    """See Ops. A tile has up to 128 queries. Extra memory: at most 64 MB of maxima (up to 131,072 sequences), twice
    64 MB of entries, and 16 bytes for each chunk."""
    num_seqs, num_words = len(cu_seqlens) - 1, len(scores.words)
    width = _WORDS * min(triton.cdiv(num_words, _WORDS), max(1, max_maxima // (num_seqs * _WORDS)))
    num_slices, num_chunks = triton.cdiv(num_words, width), triton.cdiv(width, _CHUNK)
    maxima = torch.empty((num_seqs, width), dtype=torch.int32, device=hidden.device)
    counts = torch.empty((num_slices, num_seqs * num_chunks), dtype=torch.int64, device=hidden.device)
    ends = torch.empty_like(counts)
    entries = torch.empty((min(max_entries, num_seqs * num_words), 2), dtype=torch.float32, device=hidden.device)
    chunks = (num_seqs, num_chunks)
    for number in range(num_slices):
        _maxima(hidden, scores, tiles, maxima, first_word=number * width)
        _count[chunks](maxima, counts[number], width, CHUNK=_CHUNK, num_warps=4)
        torch.cumsum(counts[number], 0, out=ends[number])
        if number:
            ends[number] += ends[number - 1, -1]
        _write[chunks](
            maxima,
            counts[number],
            ends[number],
            entries,
            number * width,
            width,
            len(entries),
            CHUNK=_CHUNK,
            num_warps=4,
        )
    found = counts.view(num_slices, num_seqs, num_chunks).sum(dim=2)
    if num_slices > 1:
        entries = _by_sequence(entries, found)
    weights = entries[:, 1].log1p_()
    if scores.is_log_twice:
        weights.log1p_()
    return RaggedRows(found.sum(dim=0).int(), entries)


def _maxima(hidden: Tensor, scores: WordScores, tiles: Tiles, maxima: Tensor, *, first_word: int) -> None:
    """Fill int32 [B, width] with the bits of the largest scores of some words; 0 where none is above 0."""
    words, num_tiles = scores.words, _ROWS // tiles.block
    is_float32 = hidden.dtype == torch.float32  # for checks; takes twice the room, and is multiplied in registers
    block = _WORDS // 2 if is_float32 else _WORDS
    maxima.zero_()
    _take_maxima[(triton.cdiv(len(tiles.table), num_tiles), triton.cdiv(maxima.shape[1], block))](
        hidden,
        words,
        scores.bias,
        tiles.table,
        maxima,
        len(tiles.table),
        len(words),
        first_word,
        maxima.shape[1],
        row_stride(hidden),
        row_stride(words),
        WIDTH=words.shape[1],
        FIELDS=TILE_FIELDS,
        TILES=num_tiles,
        QUERIES=tiles.block,
        WORDS=block,
        STEP=32 if is_float32 else 64,
        num_warps=8,
        num_stages=2 if is_float32 else 3,
    )


@triton.jit(
    do_not_specialize=["num_tiles", "num_words", "first_word", "slice_width"],
    do_not_specialize_on_alignment=["tiles"],
)
def _take_maxima(
    rows: tl.tensor,
    words: tl.tensor,
    bias: tl.tensor,
    tiles: tl.tensor,
    maxima: tl.tensor,
    num_tiles: tl.tensor,
    num_words: tl.tensor,
    first_word: tl.tensor,
    slice_width: tl.tensor,
    rows_stride: tl.tensor,
    words_stride: tl.tensor,
    WIDTH: tl.constexpr,
    FIELDS: tl.constexpr,
    TILES: tl.constexpr,
    QUERIES: tl.constexpr,
    WORDS: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    tile = tl.program_id(0) * TILES + tl.arange(0, TILES)
    is_tile = tile < num_tiles
    tiles += tile * FIELDS
    num_queries = tl.load(tiles + 1, mask=is_tile, other=0)
    if tl.max(num_queries, axis=0) > 0:
        first_row = tl.load(tiles, mask=is_tile, other=0)
        query = tl.arange(0, QUERIES)
        row = tl.reshape(first_row[:, None] + query[None, :], [TILES * QUERIES]).to(tl.int64)
        is_row = tl.reshape(query[None, :] < num_queries[:, None], [TILES * QUERIES])
        place = tl.program_id(1) * WORDS + tl.arange(0, WORDS)  # in the slice
        word = first_word + place
        is_word = word < num_words
        product = tl.zeros((TILES * QUERIES, WORDS), tl.float32)
        for start in range(0, WIDTH, STEP):
            column = start + tl.arange(0, STEP)
            is_column = column < WIDTH
            # what is beside the tile and behind the row's end may be NaN
            part = tl.load(
                rows + row[:, None] * rows_stride + column[None, :],
                mask=is_row[:, None] & is_column[None, :],
                other=0.0,
            )
            word_part = tl.load(
                words + word.to(tl.int64)[None, :] * words_stride + column[:, None],
                mask=is_word[None, :] & is_column[:, None],
                other=0.0,
            )
            product = tl.dot(part, word_part, product, input_precision="ieee")
        if bias is not None:
            product += tl.load(bias + word, mask=is_word, other=0.0).to(tl.float32)[None, :]
        product = tl.where((product < 0.0) | ~is_row[:, None], 0.0, product)  # NaN is not below 0
        bits = tl.reshape(magnitude_bits(product), [TILES, QUERIES, WORDS])
        sequence = tl.load(tiles + FIELDS - 1, mask=is_tile, other=0).to(tl.int64)
        target = maxima + sequence[:, None] * slice_width + place[None, :]
        largest = tl.max(bits, axis=1)
        # Maxima begin at 0, which most of them stay. Only later kernels read them, so nothing has to be in order here.
        mask = (num_queries > 0)[:, None] & is_word[None, :] & (largest != 0)
        tl.atomic_max(target, largest, mask=mask, sem="relaxed")


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=["counts"])
def _count(maxima: tl.tensor, counts: tl.tensor, width: tl.tensor, CHUNK: tl.constexpr) -> None:
    sequence = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    bits = tl.load(maxima + sequence * width + place, mask=place < width, other=0)
    number = tl.sum((bits != 0).to(tl.int32), axis=0)
    tl.store(counts + sequence * tl.num_programs(1) + tl.program_id(1), number.to(tl.int64))


@triton.jit(do_not_specialize=["first_word", "width", "capacity"], do_not_specialize_on_alignment=["counts", "ends"])
def _write(
    maxima: tl.tensor,
    counts: tl.tensor,
    ends: tl.tensor,
    entries: tl.tensor,
    first_word: tl.tensor,
    width: tl.tensor,
    capacity: tl.tensor,
    CHUNK: tl.constexpr,
) -> None:
    sequence = tl.program_id(0).to(tl.int64)
    chunk = sequence * tl.num_programs(1) + tl.program_id(1)
    count = tl.load(counts + chunk)
    if count > 0:
        place = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
        bits = tl.load(maxima + sequence * width + place, mask=place < width, other=0)
        is_found = (bits != 0).to(tl.int32)
        target = tl.load(ends + chunk) - count + tl.cumsum(is_found, axis=0) - is_found
        mask = (bits != 0) & (target < capacity)
        tl.store(entries + 2 * target, (first_word + place).to(tl.float32), mask=mask)
        tl.store(entries + 2 * target + 1, bits.to(tl.float32, bitcast=True), mask=mask)


def _by_sequence(entries: Tensor, counts: Tensor) -> Tensor:
    """The same entries, but of several slices and sequence by sequence. counts: int64 [slices, B]."""
    moved = torch.empty_like(entries)
    ends = counts.view(-1).cumsum(0)
    targets = counts.t().reshape(-1).cumsum(0)
    num_slices, num_seqs = counts.shape
    whole, whole_moved = (part.view(torch.int64) for part in (entries, moved))  # an entry is 8 bytes
    _move[(num_seqs, num_slices)](whole, counts, ends, targets, whole_moved, len(entries), CHUNK=_CHUNK, num_warps=4)
    return moved


@triton.jit(do_not_specialize=["capacity"])
def _move(
    entries: tl.tensor,
    counts: tl.tensor,
    ends: tl.tensor,
    targets: tl.tensor,
    moved: tl.tensor,
    capacity: tl.tensor,
    CHUNK: tl.constexpr,
) -> None:
    sequence, number = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    part = number * tl.num_programs(0) + sequence
    count = tl.load(counts + part)
    source = tl.load(ends + part) - count
    target = tl.load(targets + sequence * tl.num_programs(1) + number) - count
    first = 0
    while first < count:  # the interpreter takes no range up to a tensor
        place = first + tl.arange(0, CHUNK)
        mask = (place < count) & (source + place < capacity) & (target + place < capacity)
        tl.store(moved + target + place, tl.load(entries + source + place, mask=mask), mask=mask)
        first += CHUNK
