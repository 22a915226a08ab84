"""START comes out as it went in, for every role."""

import dataclasses
from typing import Any

import pytest

from batch_manager.messages import EngineAddress, ManagerAddress, ManagerStart, Policy
from engine import fake
from engine.cpu import offer as cpu
from engine.machine.cuda_driver import Gpu
from engine.messages import EngineStart, LoadOptions
from engine.model.model_folder import ModelFolder
from engine.offer import offer_of
from engine.registry import ENGINES
from engine.types import OutputKind
from server.features.jobs.feature import JobsFlags, JobsStart
from server.frontend.start import Access, FeatureStart, FrontendStart, ProcessAddress
from server.settings.api_keys import ApiKey, KeyFile, digest
from server.settings.flag import flags_of
from server.settings.http_flags import HttpFlags, LimitFlags, LogFlags
from server.settings.model import ModelSettings
from server.settings.settings import server_flags
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
    http=HttpFlags(rerank_document_format="string", cors_allow_origin=("https://a.b",), ssl_certfile="/certificate"),
    access=Access(
        keys=[ApiKey("team", digest(b"sesame"))],
        key_file=KeyFile(path="/keys", version=(1 << 60, 2, 3), flag_keys=(ApiKey("key-1", digest(b"flag")),)),
        hosts=("embed.internal",),
        ssl_copies=[8],
    ),
    limits=LimitFlags(payload_limit=3, bulk_max_wait=2.5),
    log=LogFlags(request_log="off", request_log_sample_rate=0.5),
    max_connections=9,
    max_held_bytes=8,
    open_payload_limit=4,
    shutdown_timeout=5.0,
)
JOBS = JobsStart(
    listener_fd=3,
    flags=JobsFlags(jobs="/jobs", jobs_redis="redis://:secret@localhost", jobs_key_share=0.25, jobs_batch_ttl=3.5),
    waits_for_folder=False,
    http_path="/h",
    secret="secret",
    max_in_flight=4,
)
MANAGER = ManagerStart(
    listener_fd=3, page_fd=4, models=["a"], engines=[EngineAddress("/e", 0, 1)], policy=Policy(max_batch_tokens=7)
)
OWN = fake.Options(fake_dim=8, vocab_size=9, outputs=OutputKind.LOGITS, fake_fault=("exit@batch:3",))
OPTIONS = LoadOptions(
    device="cuda:0",
    task="embed",
    memory_share=1,
    gpu=Gpu(0, "NVIDIA H100", (9, 0), 80 << 30),
    own={"fake": to_json(OWN)},
)
ENGINE = EngineStart(listener_fd=3, engine="fake", model="a", reason="asked", options=OPTIONS)
KEPT = {"api_key", "hf_token", "jobs_redis"}  # what no frontend is told
PROCESS = ProcessStart(title="a process 1", index=1, log_level="info", json_output=True)


@pytest.mark.parametrize("start", [FRONTEND, MANAGER, ENGINE, TOKENIZER, JOBS])
def test_they_come_out_as_they_went_in(start: Any) -> None:
    payload = b"".join(map(bytes, encode_start(PROCESS, start)))
    assert decode_start(payload, type(start)) == (PROCESS, start)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (None, "not NoneType"),
        ({"device": "cpu", "moon": "secret"}, r"^a LoadOptions has the fields device, path.*, not device, moon$"),
        ({}, "missing 1 required keyword-only argument: 'device'"),
        ({"device": "cpu", "max_num_tokens": "many"}, "'many' is not of type int"),
        ({"device": "cpu", "max_num_seqs": True}, "True is not of type int"),
        ({"device": "cpu", "own": ["fake"]}, r"\['fake'\] is not of type dict"),
        ({"device": "cpu", "gpu": {"index": 0, "name": "T4", "capability": [7], "num_bytes": 1}}, "not a Gpu"),
    ],
)
def test_a_start_of_another_form_is_refused(options: Any, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        from_json(EngineStart, {**to_json(ENGINE), "options": options})


def test_an_engine_reads_its_own_options_and_refuses_others() -> None:
    assert OPTIONS.own_of("fake", fake.Options) == OWN
    assert OPTIONS.own_of("openvino", cpu.Options) == cpu.Options()
    for wrong in ({"moon": 1}, {"fake_dim": "8"}, {"outputs": "all"}):
        with pytest.raises(ProtocolError, match="Options"):
            dataclasses.replace(OPTIONS, own={"fake": wrong}).own_of("fake", fake.Options)


def test_an_own_option_is_named_after_a_flag_or_what_the_folder_says() -> None:
    """Under another name it would keep its default, whatever is asked for. Of the rest, nothing can be asked for."""
    known = {*dir(ModelFolder), *(field.name for field in dataclasses.fields(ModelSettings))}
    own = {field.name for engine in ENGINES for field in dataclasses.fields(offer_of(engine).options)}
    rest = {"compiles_in_child", "is_gated", "weights"}
    assert own - known <= rest
    assert {name for name in known if name.startswith(("fake_", "tensorrt_llm_", "compiled_"))} <= own


@pytest.mark.holds("API keys never leak")
def test_keys_are_not_sent() -> None:
    assert b"sesame" not in b"".join(map(bytes, encode_start(PROCESS, FRONTEND)))
    secret = {flag.name for flag in server_flags() if flag.name in KEPT}
    assert secret == KEPT  # they have these names
    assert secret.isdisjoint(flag.name for kind in (HttpFlags, LimitFlags, LogFlags) for flag in flags_of(kind))
