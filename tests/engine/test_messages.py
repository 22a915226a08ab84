"""Frames between a batch manager and an engine carry everything there and back."""

import numpy as np
import pytest

from engine import messages
from engine.fake import load, row, table
from engine.messages import LoadOptions
from engine.types import Batch, EngineError, EngineErrorKind, EngineLimits, ModelInfo, OutputKind, Rows, compute
from wire.parts import Part


def joined(parts: list[bytes | bytearray | memoryview]) -> memoryview:
    return memoryview(b"".join(parts))


def test_batch() -> None:
    ids = [np.array([1, 2, 3], np.int32), np.array([4], np.int32), np.array([5, 6], np.int32)]
    types = np.array([0, 0, 1, 0, 1, 1], np.int32)

    batch = messages.decode_batch(
        "m",
        joined(
            messages.encode_batch(
                OutputKind.POOLED, [3, 1, 2], [part.tobytes() for part in ids], {Part.TOKEN_TYPE_IDS: [types.tobytes()]}
            )
        ),
    )

    assert batch.model == "m"
    assert batch.outputs == OutputKind.POOLED
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert batch.token_type_ids is not None
    assert batch.token_type_ids.tolist() == types.tolist()
    assert (batch.num_tokens, batch.num_seqs, batch.max_seqlen) == (6, 3, 3)


@pytest.mark.parametrize(
    "types", [{}, {Part.TOKEN_TYPE_IDS: [np.array([0, 1], np.int32).tobytes()], Part.MARKS: [b"\0\1"]}]
)
@pytest.mark.parametrize("is_urgent", [False, True])
@pytest.mark.parametrize("gives_way", [False, True])
def test_what_a_batch_is_marked_with(types: dict[Part, list[bytes]], is_urgent: bool, gives_way: bool) -> None:
    ids = np.array([7, 8], np.int32).tobytes()
    parts = messages.encode_batch(OutputKind.POOLED, [2], [ids], types, is_urgent=is_urgent, gives_way=gives_way)
    batch = messages.decode_batch("m", joined(parts))
    assert (batch.is_urgent, batch.gives_way, batch.token_type_ids is not None) == (is_urgent, gives_way, bool(types))


@pytest.mark.parametrize("shared", [[0, 3, 1], [0, 2, 2], [0, 0, -1], [1, 0, 0], [0, 3, 0]])
def test_a_batch_that_shares_more_than_there_is_is_malformed(shared: list[int]) -> None:
    """Of sequences of 2, 3 and 2 tokens; an engine would read the tokens of another one."""
    ids = np.arange(7, dtype=np.int32).tobytes()

    def decoded(shared: list[int]) -> Batch:
        parts = {Part.SHARED: [np.array(shared, np.int32).tobytes()]}
        return messages.decode_batch("m", joined(messages.encode_batch(OutputKind.POOLED, [2, 3, 2], [ids], parts)))

    batch = decoded([0, 2, 1])
    assert batch.shared is not None
    assert batch.shared.tolist() == [0, 2, 1]
    with pytest.raises(ValueError, match="shares more"):
        decoded(shared)


def test_result_of_several_outputs() -> None:
    dense = np.arange(6, dtype=np.float32).reshape(2, 3)
    ragged = np.arange(10, dtype=np.float32).reshape(5, 2)
    offsets = np.array([0, 2, 5], np.int32)
    results = {OutputKind.POOLED: Rows(dense), OutputKind.TOKENS: Rows(ragged, offsets)}

    decoded, seconds = messages.decode_result(joined(messages.encode_result(results, 0.25)))

    assert seconds == 0.25
    assert list(decoded) == [OutputKind.POOLED, OutputKind.TOKENS]
    assert np.array_equal(decoded[OutputKind.POOLED].values, dense)
    assert decoded[OutputKind.POOLED].offsets is None
    assert np.array_equal(decoded[OutputKind.TOKENS].values, ragged)
    assert np.array_equal(decoded[OutputKind.TOKENS].offsets, offsets)  # type: ignore[arg-type]


def test_rows_that_are_not_contiguous() -> None:
    wide = np.arange(12, dtype=np.float32).reshape(3, 4)

    decoded, _ = messages.decode_result(joined(messages.encode_result({OutputKind.POOLED: Rows(wide[:, :2])}, 0.0)))

    assert np.array_equal(decoded[OutputKind.POOLED].values, wide[:, :2])


def test_ready_and_failed() -> None:
    info = ModelInfo(
        name="m",
        engine="fake",
        reason="asked",
        outputs=OutputKind.POOLED | OutputKind.SPARSE,
        dimensions=8,
        max_seqlen=16,
        vocab_size=100,
        pooling="mean",
        normalize=True,
        dtype="float32",
        device="cpu",
        architecture="bert",
        notes=("a", "b"),
    )
    limits = EngineLimits(max_num_tokens=64, max_num_seqs=4, max_seqlen=16, token_buckets=(16, 32))
    error = EngineError(EngineErrorKind.OUT_OF_MEMORY, "too much")

    assert messages.decode_ready(joined(messages.encode_ready(info, limits))) == (info, limits)
    decoded = messages.decode_failed(joined(messages.encode_failed(error)))
    assert (decoded.kind, str(decoded)) == (error.kind, "too much")


def test_frames_of_plain_texts_hold_nothing_of_parts() -> None:
    """Held byte for byte: a change of these costs every request, and breaks a server that is taken over."""
    ids = np.arange(5, dtype=np.int32)
    head = "010002000200000005000000000000000200000005000000"
    batch = messages.encode_batch(OutputKind.POOLED, [2, 3], [ids.tobytes()], is_urgent=True)
    assert bytes(joined(batch)).hex().startswith(head)
    assert bytes(joined(batch))[24:] == ids.tobytes()


def test_marks_and_adapters_stay_with_their_sequences() -> None:
    """Split, in batches with others that lack a part; what the fake engine computes names the parts of each."""
    ids = np.tile(np.array([5, 6, 7], np.int32), 4)
    marks, adapters = np.array([0, 8, 0] + [0] * 6 + [8, 0, 0], np.uint8), np.array([0, 2, 0, 0], np.int32)
    parts = {Part.MARKS: [marks.tobytes()], Part.ADAPTERS: [adapters.tobytes()]}
    batch = messages.decode_batch(
        "m", joined(messages.encode_batch(OutputKind.POOLED, [3] * 4, [ids.tobytes()], parts))
    )
    fake = load(name="m", reason="", options=LoadOptions(device="cpu", max_seqlen=8))
    whole = compute(fake, batch)
    assert not isinstance(whole, EngineError)
    rows = whole[OutputKind.POOLED].values
    assert len({each.tobytes() for each in rows}) == 4, "sequences of the same ids differ in their parts alone"
    assert np.array_equal(rows[2], row(table(1024), ids[:3].tobytes())), "a plain one among them is as alone"
    for place in range(4):
        alone = compute(fake, batch.taken(np.arange(4) == place))
        assert not isinstance(alone, EngineError)
        assert np.array_equal(alone[OutputKind.POOLED].values[0], rows[place])
