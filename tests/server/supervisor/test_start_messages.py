"""START comes out as it went in, for every role."""

from typing import Any

import pytest

from batch_manager.client import ManagerAddress
from batch_manager.messages import EngineAddress, ManagerStart, Policy
from engine.machine.cuda_driver import Gpu
from engine.messages import EngineStart, FakeOptions, LoadOptions
from engine.types import OutputKind
from server.features.jobs.messages import JobsStart
from server.frontend.start import FeatureStart, FrontendStart, ProcessAddress
from server.requests.admission import WaitBudgets
from server.settings.api_keys import ApiKey, KeyFile, digest
from tokenizer_pool.messages import TokenizerSpec, TokenizerStart
from wire.control import ProcessStart, decode_start, encode_start
from wire.dataclass_json import from_json, to_json
from wire.frames import ProtocolError

TOKENIZER = TokenizerStart(
    listener_fd=7,
    models=["x", "y"],
    tokenizers=[
        TokenizerSpec(folder="/models/x", max_seqlen=512, do_lower_case=True, vocab_size=30522),
        TokenizerSpec(folder="/models/y", max_seqlen=8192, template=("<s>", "{query} {document}"), marks_prompts=True),
    ],
)
FRONTEND = FrontendStart(
    listener_fds=[3, 5],
    features=[FeatureStart("jobs", ProcessAddress("/j", "secret", 6)), FeatureStart("gRPC", port="127.0.0.1:9090")],
    page_fd=4,
    tokenizer_paths=["/t"],
    tokenizer=TOKENIZER,
    max_seqlens=[256],
    managers=[ManagerAddress("/m", (0, 1))],
    wait_budgets=WaitBudgets(1.0, 2.5),
    max_connections=9,
    max_concurrent_requests=1,
    max_held_bytes=8,
    max_client_batch_size=2,
    compress_answers=True,
    payload_limit=3,
    open_payload_limit=4,
    shutdown_timeout=5.0,
    keys=[ApiKey("team", digest(b"sesame"))],
    key_file=KeyFile(path="/keys", version=(1 << 60, 2, 3), flag_keys=(ApiKey("key-1", digest(b"flag")),)),
    metrics_auth=True,
    strict_model_name=False,
    rerank_document_format="string",
    token_ids="native",
    tiktoken_vocabulary=None,
    url_prefix="/embed",
    keep_alive_timeout=600,
    cors_allow_origin=["*"],
    hosts=("embed.internal",),
    ssl_certfile="/certificate",
    ssl_keyfile=None,
    ssl_copies=[8],
    request_log="off",
    request_log_sample_rate=0.5,
)
JOBS = JobsStart(
    listener_fd=3,
    folder="/jobs",
    redis="redis://:secret@localhost",
    files="s3://key:secret@bucket",
    waits_for_folder=False,
    quota=1,
    result_ttl=2.5,
    batch_ttl=3.5,
    key_share=0.25,
    webhook_secrets=None,
    private_webhooks=True,
    http_path="/h",
    secret="secret",
    max_in_flight=4,
)
MANAGER = ManagerStart(
    listener_fd=3, page_fd=4, models=["a"], engines=[EngineAddress("/e", 0, 1)], policy=Policy(max_batch_tokens=7)
)
OPTIONS = LoadOptions(
    device="cuda:0",
    task="embed",
    memory_share=1,
    gpu=Gpu(0, "NVIDIA H100", (9, 0), 80 << 30),
    fake=FakeOptions(dimensions=8, vocab_size=9, outputs=OutputKind.LOGITS, faults=("exit@batch:3",)),
)
ENGINE = EngineStart(listener_fd=3, engine="fake", model="a", reason="asked", options=OPTIONS)
PROCESS = ProcessStart(title="a process 1", index=1, log_level="info", json_output=True)


@pytest.mark.parametrize("start", [FRONTEND, MANAGER, ENGINE, TOKENIZER, JOBS])
def test_they_come_out_as_they_went_in(start: Any) -> None:
    payload = b"".join(map(bytes, encode_start(PROCESS, start)))
    assert decode_start(payload, type(start)) == (PROCESS, start)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (None, "not None"),
        ({"device": "cpu", "moon": 1}, "a LoadOptions has the fields device, path"),
        ({}, "missing 1 required keyword-only argument: 'device'"),
        ({"device": "cpu", "max_num_tokens": "many"}, "'many' is not of type int"),
        ({"device": "cpu", "records_graphs": 1}, "1 is not of type bool"),
        ({"device": "cpu", "gpu": {"index": 0, "name": "T4", "capability": [7], "num_bytes": 1}}, "not a Gpu"),
        ({"device": "cpu", "fake": {"dimensions": 8, "vocab_size": 9, "outputs": "all"}}, "not a FakeOptions"),
    ],
)
def test_a_start_of_another_form_is_refused(options: Any, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        from_json(EngineStart, {**to_json(ENGINE), "options": options})


@pytest.mark.holds("API keys never leak")
def test_keys_are_not_sent() -> None:
    assert b"sesame" not in b"".join(map(bytes, encode_start(PROCESS, FRONTEND)))
