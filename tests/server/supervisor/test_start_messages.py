"""What START tells a process comes out as it went in, through JSON and beside what every process is told."""

import dataclasses
import json

import pytest

from batch_manager.client import ManagerAddress
from batch_manager.messages import EngineAddress, ManagerStart, Policy
from engine.start import EngineStart
from server.frontend.start import FrontendStart
from server.requests.admission import WaitBudgets
from server.settings.api_keys import ApiKey, digest
from wire.control import Json

FRONTEND = FrontendStart(
    listener_fd=3,
    page_fd=4,
    tokenizer_paths=["/t"],
    max_seqlens=[256],
    managers=[ManagerAddress("/m", (0, 1))],
    wait_budgets=WaitBudgets(1.0, 2.5),
    max_concurrent_requests=1,
    max_client_batch_size=2,
    payload_limit=3,
    open_payload_limit=4,
    shutdown_timeout=5.0,
    keys=[ApiKey("team", digest(b"sesame"))],
    metrics_auth=True,
    strict_model_name=False,
    cors_allow_origin=["*"],
    request_log="off",
)
MANAGER = ManagerStart(
    listener_fd=3, page_fd=4, models=["a"], engines=[EngineAddress("/e", 0)], policy=Policy(max_batch_tokens=7)
)
ENGINE = EngineStart(listener_fd=3, engine="fake", model="a", reason="asked", options={"device": "cpu", "path": None})


def as_sent(spec: Json) -> Json:
    sent: Json = json.loads(json.dumps({"title": "a process", "index": 0, **spec}))
    return sent


def test_they_come_out_as_they_went_in() -> None:
    assert FrontendStart.from_spec(as_sent(FRONTEND.to_spec())) == FRONTEND
    assert ManagerStart.from_spec(as_sent(dataclasses.asdict(MANAGER))) == MANAGER
    assert EngineStart.from_spec(as_sent(dataclasses.asdict(ENGINE))) == ENGINE


@pytest.mark.holds("API keys never leak")
def test_keys_do_not_travel() -> None:
    assert "sesame" not in json.dumps(FRONTEND.to_spec())
