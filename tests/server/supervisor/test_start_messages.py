"""START comes out as it went in, for every role."""

from typing import Any

import pytest

from batch_manager.client import ManagerAddress
from batch_manager.messages import EngineAddress, ManagerStart, Policy
from engine.start import EngineStart
from server.frontend.start import FrontendStart
from server.requests.admission import WaitBudgets
from server.settings.api_keys import ApiKey, digest
from tokenizer_pool.messages import TokenizerSpec, TokenizerStart
from wire.control import ProcessStart, decode_start, encode_start

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
TOKENIZER = TokenizerStart(
    listener_fd=7,
    models=["x", "y"],
    tokenizers=[
        TokenizerSpec(folder="/models/x", max_seqlen=512, do_lower_case=True, vocab_size=30522),
        TokenizerSpec(folder="/models/y", max_seqlen=8192, template=("<s>", "{query} {document}"), marks_prompts=True),
    ],
)
PROCESS = ProcessStart(title="a process 1", index=1, log_level="info", json_output=True)


@pytest.mark.parametrize("start", [FRONTEND, MANAGER, ENGINE, TOKENIZER])
def test_they_come_out_as_they_went_in(start: Any) -> None:
    payload = b"".join(map(bytes, encode_start(PROCESS, start)))
    assert decode_start(payload, type(start)) == (PROCESS, start)


@pytest.mark.holds("API keys never leak")
def test_keys_are_not_sent() -> None:
    assert b"sesame" not in b"".join(map(bytes, encode_start(PROCESS, FRONTEND)))
