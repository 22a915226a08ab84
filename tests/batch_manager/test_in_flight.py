"""The rows of requests, as a batch manager puts them together."""

import numpy as np
import pytest

from batch_manager.in_flight import Assembly
from engine.messages import decode_rows, encode_rows
from engine.types import OutputKind, Rows


@pytest.mark.holds("Memory stays flat")
@pytest.mark.parametrize("offsets", [None, np.array([0, 2], np.int32)], ids=["dense", "ragged"])
def test_a_part_keeps_no_answer_of_an_engine_in_memory(offsets: np.ndarray | None) -> None:
    values = np.ones((1 if offsets is None else 2, 4), np.float32)
    payload = bytearray(b"".join(encode_rows({OutputKind.TOKENS: Rows(values, offsets)})))
    assembly = Assembly(2)
    assembly.put(decode_rows(payload, 0), start=0, stop=1)
    payload.clear()  # raises BufferError while there is a view of it
