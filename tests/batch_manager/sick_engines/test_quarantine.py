"""Inputs that took engines down are known again by their ids, for ten minutes, in bounded memory."""

import pytest

from batch_manager.messages import Submission
from batch_manager.worker import MAX_QUARANTINED, QUARANTINE_SECONDS, Quarantine
from engine.types import OutputKind
from tests.batch_manager.peers import ids_of
from wire.parts import Part
from wire.vocabulary import RequestClass


def asked(*seqlens: int, first: int = 1, model: int = 0, **parts: bytes) -> Submission:
    ids = ids_of(*seqlens, first=first).tobytes()
    named = {Part[name.upper()]: values for name, values in parts.items()}
    return Submission(model, RequestClass.BULK, OutputKind.POOLED, float("inf"), seqlens, ids, named)


def test_an_input_is_known_again_wherever_it_stands() -> None:
    quarantine = Quarantine()
    quarantine.add(asked(3, 5, 4), 1, 0.0)  # ids 4 to 8
    assert quarantine.find(asked(5, first=4), 1.0) == 0
    assert quarantine.find(asked(2, 1, 5, 9), 1.0) == 2
    assert quarantine.find(asked(5, first=5), 1.0) is None
    assert quarantine.find(asked(4, first=4), 1.0) is None


def test_another_model_or_other_types_are_another_input() -> None:
    quarantine = Quarantine()
    quarantine.add(asked(2, model=1), 0, 0.0)
    assert quarantine.find(asked(2), 1.0) is None
    assert quarantine.find(asked(2, model=1, token_type_ids=bytes(8), adapters=bytes(4)), 1.0) == 0, "zero is none"
    assert quarantine.find(asked(2, model=1, token_type_ids=bytes(7) + b"\1"), 1.0) is None


def test_it_ends_after_its_time() -> None:
    quarantine = Quarantine()
    quarantine.add(asked(2), 0, 0.0)
    quarantine.add(asked(2, first=9), 0, 0.0)
    quarantine.add(asked(2), 0, 100.0)
    assert quarantine.find(asked(2), QUARANTINE_SECONDS) == 0
    assert quarantine.find(asked(2, first=9), QUARANTINE_SECONDS) is None
    assert quarantine.find(asked(2), QUARANTINE_SECONDS + 100.0) is None


@pytest.mark.parametrize("seqlen", [1, 7])
def test_the_oldest_makes_room(seqlen: int) -> None:
    quarantine = Quarantine()
    for first in range(MAX_QUARANTINED + 1):
        quarantine.add(asked(seqlen, first=first), 0, float(first) / 1e3)
    assert quarantine.find(asked(seqlen, first=0), 2.0) is None
    assert quarantine.find(asked(seqlen, first=1), 2.0) == 0
    assert quarantine.find(asked(seqlen, first=MAX_QUARANTINED), 2.0) == 0
