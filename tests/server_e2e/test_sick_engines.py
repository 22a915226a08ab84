"""One of two engines is sick: clients notice nothing, and the log and the metrics say so."""

from pathlib import Path

import numpy as np
import pytest

from tests.server_e2e.expected import FAKE, row_of_ids
from tests.server_e2e.load import Load
from tests.server_e2e.running import Server, serving

TWO = (*FAKE, "--fake-cost-ms", "2", "--devices", "a,b")
POISON = 29_000  # an id that no text here has and the warm-up does not reach

pytestmark = [pytest.mark.full, pytest.mark.faults]


def metric(server: Server, name: str) -> float:
    """The sum of a metric over its labels."""
    lines = server.request("GET", "/metrics").body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


@pytest.mark.holds("A sick engine costs no answers", "Sick engines")
@pytest.mark.parametrize(("fault", "num_managers"), [("fail", "1"), ("nan", "1"), ("fail", "2")])
def test_an_engine_that_fails_from_some_batch_on_costs_no_answer(fault: str, num_managers: str, tmp_path: Path) -> None:
    flags = ("--fake-fault", f"{fault}@after:60/b", "--batch-managers", num_managers)
    with serving(*TWO, *flags, folder=tmp_path) as server:
        server.log.wait_for("engine 1 is ready")
        with Load(server) as load:
            seen = 0
            for _ in range(3):
                _, seen = server.log.wait_for("engine 1 is restarted: it failed its canary", after=seen)
                _, seen = server.log.wait_for("engine 1 has ended: exit status 1", after=seen)
                _, seen = server.log.wait_for("engine 1 is ready", after=seen)
            load.wait_for(1000)
        assert metric(server, "embedline_engine_losses_total") >= 3
        assert metric(server, "embedline_batch_failures_total") >= 1  # a canary may come before the next batch fails
    assert not load.wrong
    assert set(load.outcomes) == {200}
    assert not [line for line in server.log.lines if "engine 0 has ended" in line]


def test_rows_that_turn_wrong_are_found_out(tmp_path: Path) -> None:
    with serving(*TWO, "--fake-fault", "wrong@after:60/b", folder=tmp_path) as server, Load(server) as load:
        server.log.wait_for("POOLED rows differ by")
        server.log.wait_for("engine 1 is restarted: it failed its canary")
    assert load.wrong, "the fault was there"
    assert set(load.outcomes) == {200}


@pytest.mark.holds("A bad input fails alone", "When a process dies")
def test_the_culprit_among_a_thousand_inputs_costs_three_deaths(tmp_path: Path) -> None:
    with serving(*FAKE, "--token-ids", "any", "--fake-fault", f"exit@token:{POISON}", folder=tmp_path) as server:
        inputs = [[5, at] for at in range(6, 1000)]
        inputs[333] = [POISON]

        reply = server.embed(inputs)

        assert reply.status == 500
        assert reply.json()["error"]["param"] == "input[333]"
        del inputs[333]
        well = server.embed(inputs, encoding_format="bytes")
        assert np.array_equal(
            np.frombuffer(well.body, "<f4").reshape(len(inputs), -1), [row_of_ids(ids) for ids in inputs]
        )
        assert len([line for line in server.log.lines if "engine 0 has ended" in line]) <= 3
        assert metric(server, "embedline_batch_release_total") <= 100
