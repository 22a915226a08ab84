"""A text that ends the process which tokenizes it, in a server whose frontend does that."""

import contextlib
from pathlib import Path

import pytest

from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import ROOT, serving

DEADLY = "the deadly one"
# Every interpreter of the server imports it. Nothing that is known kills the library, so a text is made to.
PLANTED = f"""
import os
from tokenizer_pool.guarded import TextQuarantine

one_by_one = TextQuarantine.one_by_one

def planted(self, function, items):
    return one_by_one(self, lambda some: os._exit(9) if {DEADLY!r} in some else function(some), items)

TextQuarantine.one_by_one = planted
"""


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("When a process dies")
@pytest.mark.parametrize("flags", [("--topology", "compact"), ("--topology", "spread", "--tokenization-workers", "0")])
def test_it_costs_one_death_and_is_refused_then(flags: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PLANTED)
    environment = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    with serving(*FAKE, *flags, "--frontends", "1", folder=tmp_path, environment=environment) as server:
        started = len(server.log.lines)
        with contextlib.suppress(ConnectionError):
            server.embed(["before it", DEADLY, "behind it"])
        server.wait_ready(after=started)
        died = [line for line in server.log.lines if "frontend 0 has ended" in line]
        reply = server.embed(["before it", DEADLY, "behind it"])
        assert (reply.status, reply.json()["error"]["param"]) == (400, "input[1]"), reply.body
        assert server.embed(["before it", "behind it"]).status == 200
        assert died == [line for line in server.log.lines if "frontend 0 has ended" in line] != []
