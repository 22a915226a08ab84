"""Frames between a batch manager and an engine carry everything there and back."""

import numpy as np
import pytest

from engine import messages
from engine.types import EngineError, EngineErrorKind, EngineLimits, ModelInfo, OutputKind, Rows


def joined(parts: list[bytes | bytearray | memoryview]) -> memoryview:
    return memoryview(b"".join(parts))


def test_batch() -> None:
    ids = [np.array([1, 2, 3], np.int32), np.array([4], np.int32), np.array([5, 6], np.int32)]
    types = np.array([0, 0, 1, 0, 1, 1], np.int32)

    batch = messages.decode_batch(
        "m",
        joined(
            messages.encode_batch(OutputKind.POOLED, [3, 1, 2], [part.tobytes() for part in ids], [types.tobytes()])
        ),
    )

    assert batch.model == "m"
    assert batch.outputs == OutputKind.POOLED
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert batch.token_type_ids is not None
    assert batch.token_type_ids.tolist() == types.tolist()
    assert (batch.num_tokens, batch.num_seqs, batch.max_seqlen) == (6, 3, 3)


@pytest.mark.parametrize("types", [[], [np.array([0, 1], np.int32).tobytes()]])
@pytest.mark.parametrize("is_urgent", [False, True])
@pytest.mark.parametrize("gives_way", [False, True])
def test_what_a_batch_is_marked_with(types: list[bytes], is_urgent: bool, gives_way: bool) -> None:
    ids = np.array([7, 8], np.int32).tobytes()
    parts = messages.encode_batch(OutputKind.POOLED, [2], [ids], types, is_urgent=is_urgent, gives_way=gives_way)
    batch = messages.decode_batch("m", joined(parts))
    assert (batch.is_urgent, batch.gives_way, batch.token_type_ids is not None) == (is_urgent, gives_way, bool(types))


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
