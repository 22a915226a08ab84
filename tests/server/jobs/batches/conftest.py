"""Batches that do not pause between two tries, nor between two looks for what other servers have changed."""

import pytest

from server.features.jobs.batches import batches, run


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "FULL_PAUSE", 0.0)
    monkeypatch.setattr(batches, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(batches, "RETRY_PAUSE", 0.0)
