"""An engine worker that ends itself by the signal DIES_BY in the moment in which it has told of the stage DIES_IN."""

import os
import signal
from unittest import mock

from engine import worker
from engine.worker import StartReport

_enter = StartReport.enter


def _enter_and_die(report: StartReport, stage: str) -> None:
    _enter(report, stage)
    if stage == os.environ["DIES_IN"]:
        signal.raise_signal(signal.Signals[os.environ["DIES_BY"]])


with mock.patch.object(StartReport, "enter", _enter_and_die):
    worker.main()
