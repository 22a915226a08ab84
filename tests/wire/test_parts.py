"""Whatever stands in `Part` comes from the tokenizer to an engine, each value with its own sequence."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine import messages as engine_messages
from engine.types import Batch, OutputKind
from tokenizer_pool.tasks import TokenizedTexts, decode_tokenized, encode_tokenized
from tokenizer_pool.token_ids import join
from wire.parts import DTYPES, OF_SEQUENCES, Part, cut, size_of

NUM_TOKENS = 6
OF_TOKENS = [part for part in Part if part not in OF_SEQUENCES]
OFFSETS = np.array([0, 1, 3, 6], np.int32)


def values(part: Part, number: int) -> NDArray[Any]:
    return np.arange(1, number + 1, dtype=DTYPES[part])


def piece(**how: Any) -> TokenizedTexts:
    return TokenizedTexts(np.arange(NUM_TOKENS, dtype=np.int32), OFFSETS, np.zeros(3, np.uint8), **how)


def test_each_has_a_bit_of_a_byte_that_a_batch_has_not_for_itself() -> None:
    taken = [2, 4]  # urgent, gives way
    assert sum({*Part} | {*taken}) == sum(Part) + sum(taken) < 256
    assert all(part.bit_count() == 1 for part in Part)


def test_frames_have_those_of_large_numbers_first_so_that_all_are_aligned() -> None:
    sizes = [DTYPES[part].itemsize for part in Part]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("part", OF_TOKENS)
def test_it_comes_from_a_tokenizer_and_is_zero_where_a_piece_has_none(part: Part) -> None:
    sent = piece(parts={part: values(part, NUM_TOKENS)})
    got = decode_tokenized(memoryview(b"".join(map(bytes, encode_tokenized(sent)))))
    assert (got.parts[part].dtype, got.parts[part].tolist()) == (DTYPES[part], [1, 2, 3, 4, 5, 6])

    joined = join([piece(), got])
    assert joined.parts[part].tolist() == [0] * NUM_TOKENS + [1, 2, 3, 4, 5, 6]
    assert joined.between(4, 5).parts[part].tolist() == [2, 3]
    assert joined.taken(np.array([5, 3])).parts[part].tolist() == [4, 5, 6, 1]
    assert joined.inserted(np.array([7]), np.array([0, 0, 0, 0, 1, 0]), 9).parts[part].tolist()[6:] == [
        1,
        0,
        2,
        3,
        4,
        5,
        6,
    ]


@pytest.mark.parametrize("part", Part)
def test_it_comes_to_an_engine_with_its_sequences(part: Part) -> None:
    of_sequences = part in OF_SEQUENCES
    whole = values(part, 3 if of_sequences else NUM_TOKENS)
    if part is Part.SHARED:
        whole = np.array([1, 0, 1], np.int32)  # the first has nothing before it to share with
    own = cut({part: whole.data.cast("B")}, (1, 1), (3, 6))[part]  # the last two sequences
    assert len(own) == size_of(part, 2, 5)
    ids = np.arange(1, NUM_TOKENS, dtype=np.int32).tobytes()
    payload = b"".join(map(bytes, engine_messages.encode_batch(OutputKind.POOLED, [2, 3], [ids], {part: [own]})))
    batch = engine_messages.decode_batch("m", payload)

    def of(one: Batch) -> Any:
        found = getattr(one, part.field)
        assert found.dtype == DTYPES[part]
        return found.tolist()

    assert of(batch) == whole[1:].tolist()
    of_last = [0] if part is Part.SHARED else whole[-1:].tolist() if of_sequences else [4, 5, 6]
    assert of(batch.taken(np.array([False, True]))) == of_last
    assert [other.name for other in Part if other is not part and getattr(batch, other.field) is not None] == []


@pytest.mark.parametrize("part", Part)
def test_a_batch_without_the_bytes_of_a_part_that_it_names_is_refused(part: Part) -> None:
    whole = engine_messages.encode_batch(OutputKind.POOLED, [1], [np.array([5], np.int32).tobytes()], {part: [b""]})
    with pytest.raises(ValueError, match="the parts of a batch have 0 bytes"):
        engine_messages.decode_batch("m", b"".join(map(bytes, whole)))
