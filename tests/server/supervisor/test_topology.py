"""Which processes there are: one engine a model and device, shared out among the batch managers, known to all."""

import importlib.metadata
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import registry
from engine.fake import Options
from engine.machine import cores, cuda_driver
from engine.machine.cores import Cores
from engine.machine.cuda_driver import Cuda, Gpu
from engine.store.model_source import resolve
from server.features.jobs.feature import JobsFlags
from server.requests.models import served_models
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.child import Plan
from server.supervisor.listeners import bind
from server.supervisor.model_plan import plan_models
from server.supervisor.readiness import Readiness
from server.supervisor.resources import cpu_threads
from server.supervisor.socket_folder import SocketFolder
from server.supervisor.spawn import EarlyEngine
from server.supervisor.topology import Topology
from tests.server.edge import ready_state
from wire.page import Page

JOBS = (JobsFlags(jobs="/jobs"),)


def settings(*models: ModelSettings, **others: Any) -> Settings:
    return Settings(models=models or (model("one"), model("two")), **others)


def model(name: str, **others: Any) -> ModelSettings:
    return ModelSettings(served_model_name=name, **{"engine": "fake", **others})


Made = Callable[..., Topology]


@pytest.fixture
def made(folder: SocketFolder) -> Iterator[Made]:
    """The topology of settings, with one socket of the HTTP port."""
    with bind("127.0.0.1", 0, "--port") as http:
        yield lambda chosen, **others: Topology(chosen, plan_models(chosen), folder=folder, http=[http], **others)


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    ("payload_limit", "open_payload"),
    [(64_000_000, 1 << 30), (100_000_000, 1_600_000_000), (1_000_000, 1 << 30), (1_000, 1 << 30)],
)
def test_limits_of_the_whole_server_are_shared_out_among_its_frontends(
    made: Made, payload_limit: int, open_payload: int
) -> None:
    chosen = settings(frontends=4, max_concurrent_requests=4096, payload_limit=payload_limit)
    frontends = by_role(made(chosen).plans(), "frontend")

    assert len(frontends) == 4
    for frontend in frontends:
        assert frontend.start.limits.payload_limit == payload_limit  # one body's
        assert frontend.start.open_payload_limit == open_payload // 4
        assert frontend.start.limits.max_concurrent_requests == 1024


@pytest.fixture
def minilm_folder() -> Path:
    return resolve("sentence-transformers/all-MiniLM-L6-v2").path


@pytest.mark.parametrize(("engine", "is_taken"), [("auto", True), ("openvino", True), ("transformers", False)])
def test_an_early_engine_is_the_first_where_it_can_be(
    made: Made, minilm_folder: Path, engine: str, is_taken: bool
) -> None:
    early = EarlyEngine()
    early.start(settings(model("one", devices="cpu", engine="auto")))
    inherited = early.listener
    chosen = settings(model("one", model_id=str(minilm_folder), devices="cpu", engine=engine), model("two"))
    first, second = by_role(made(chosen, early=early).plans(), "engine")
    early.end()
    assert ((first.early is not None), second.early) == (is_taken, None)
    assert inherited is not None
    assert (first.fds == (inherited.fileno(),)) is is_taken
    if first.early is not None:
        first.early.end()


def by_role(plans: list[Plan], role: str) -> list[Plan]:
    return [plan for plan in plans if plan.role == role]


def test_every_model_has_an_engine_on_every_device(made: Made) -> None:
    chosen = settings(model("one", devices="a, b"), model("two", devices="c"), batch_managers=2, frontends=2)
    topology = made(chosen)
    plans = topology.plans()

    engines = by_role(plans, "engine")
    assert [(e.model, e.start.model, e.start.options.device) for e in engines] == [
        (0, "one", "a"),
        (0, "one", "b"),
        (1, "two", "c"),
    ]
    assert [plan.index for plan in engines] == [0, 1, 2]
    managers = by_role(plans, "batch manager")
    served = [engine.path for manager in managers for engine in manager.start.engines]
    assert len(served) == len(set(served)) == 3  # each engine has exactly one batch manager
    assert all(manager.start.engines and manager.start.models == ["one", "two"] for manager in managers)
    for frontend in by_role(plans, "frontend"):
        assert [manager.models for manager in frontend.start.managers] == [(0, 1), (0,)]
        assert frontend.start.max_seqlens == [256, 256]
    (tokenizer,) = by_role(plans, "tokenizer")[:1]
    assert [spec.max_seqlen for spec in tokenizer.start.tokenizers] == [256, 256]
    assert topology.page.num_models == 2
    assert {plan.log_level for plan in plans} == {"info"}


def test_each_model_has_settings_of_its_own(made: Made, minilm_folder: Path) -> None:
    chosen = settings(
        model("one", fake_dim=8, max_batch_tokens=100, max_input_length=16),
        model("two", engine="transformers", model_id=str(minilm_folder), dtype="bfloat16", quantization="none"),
    )
    plans = made(chosen, cache_dir="/cache").plans()

    one, two = (plan.start.options for plan in by_role(plans, "engine"))
    assert (one.own_of(registry.FAKE, Options).fake_dim, one.max_num_tokens, one.max_seqlen) == (8, 100, 16)
    assert (two.path, two.dtype, two.max_num_tokens) == (str(minilm_folder), "bfloat16", None)
    assert (two.quantization, two.cache_dir) == ("none", "/cache")
    (manager,) = by_role(plans, "batch manager")
    assert manager.start.policy.max_batch_tokens is None  # they differ, so each engine holds to its own
    (frontend,) = by_role(plans, "frontend")[:1]
    assert frontend.start.max_seqlens == [16, 256]


@pytest.mark.parametrize(
    ("devices", "asked", "number"), [("a", None, 1), ("a,b,c", None, 1), ("a,b,c,d", None, 2), ("a,b,c,d", 4, 4)]
)
def test_batch_managers_share_the_engines_out(devices: str, asked: int | None, number: int, made: Made) -> None:
    chosen = settings(model("one", devices=devices), batch_managers=asked, topology="spread")
    topology = made(chosen)
    managers = by_role(topology.plans(), "batch manager")
    assert len(managers) == topology.page.num_managers == number
    assert sum(len(manager.start.engines) for manager in managers) == len(devices.split(","))


def test_frontends_begin_with_different_tokenizers(made: Made) -> None:
    """So requests that come one at a time to each frontend don't all go to the same tokenizer."""
    chosen = settings(frontends=4, tokenization_workers=3)
    topology = made(chosen)
    paths = [plan.start.tokenizer_paths for plan in by_role(topology.plans(), "frontend")]

    assert [path[0] for path in paths] == [*paths[0], paths[0][0]]
    assert all(sorted(path) == sorted(paths[0]) for path in paths)


def test_without_tokenizer_processes_each_frontend_has_a_tokenizer_of_its_own(made: Made) -> None:
    plans = made(settings(frontends=2, tokenization_workers=0)).plans()

    assert not by_role(plans, "tokenizer")
    for plan in by_role(plans, "frontend"):
        assert (plan.inside, plan.start.tokenizer_paths) == (("tokenizer",), [])
        assert len(plan.start.tokenizer.tokenizers) == 2
        assert plan.start.manager is None


def test_compact_has_one_frontend_that_tokenizes_and_forms_batches(made: Made) -> None:
    topology = made(settings(model("one", devices="a,b"), topology="compact"))
    *engines, frontend = topology.plans()

    assert [plan.role for plan in engines] == ["engine", "engine"]
    assert frontend.inside == ("tokenizer", "batch manager")
    assert (frontend.start.tokenizer_paths, frontend.start.managers) == ([], [])
    assert frontend.start.tokenizer.models == ["one"]
    assert [engine.index for engine in frontend.start.manager.engines] == [0, 1]
    assert (topology.page.num_frontends, topology.page.num_managers) == (1, 1)


@pytest.mark.holds("Connections")
def test_every_frontend_accepts_from_every_socket(folder: SocketFolder) -> None:
    """So no connection waits for one frontend, which may be stuck or dead."""
    chosen = settings(frontends=3)
    with bind("127.0.0.1", 0, "--port") as one, bind("127.0.0.1", 0, "--port") as other:
        plans = Topology(chosen, plan_models(chosen), folder=folder, http=[one, other]).plans()
        fds = [one.fileno(), other.fileno()]

    for plan in by_role(plans, "frontend"):
        assert plan.start.listener_fds == fds
        assert set(fds) <= set(plan.fds)


@pytest.mark.parametrize(
    ("usable", "asked", "threads"), [(12, None, [4, 4, 4]), (2, None, [1, 1, 1]), (2, 3, [1, 1, 1]), (12, 5, [2, 2, 1])]
)
def test_engines_on_the_cpu_share_its_threads(
    usable: int,
    asked: int | None,
    threads: list[int],
    made: Made,
    minilm_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "usable", lambda: usable)
    monkeypatch.setattr(cores, "find", lambda: Cores(num_processors=12, num_cores=12, quota=None))
    monkeypatch.setattr(cuda_driver, "find", lambda: Cuda((Gpu(0, "NVIDIA H200", (9, 0), 1 << 37),)))
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.11.0")
    models = [
        model(name, engine="transformers", model_id=str(minilm_folder), devices=devices)
        for name, devices in {"one": "cpu,cpu", "two": "cpu", "three": "cuda:0"}.items()
    ]
    engines = by_role(made(settings(*models, cpu_threads=asked)).plans(), "engine")
    options = [engine.start.options for engine in engines]
    assert [one.num_threads for one in options if one.device == "cpu"] == threads
    assert [one.device for one in options] == ["cpu", "cpu", "cpu", "cuda:0"]
    assert [one.memory_share for one in options] == [1.0] * 4


def test_fewer_threads_than_engines_on_the_cpu_are_refused() -> None:
    models = plan_models(settings(model("one", devices="cpu"), model("two", devices="cpu")))
    with pytest.raises(SettingsError, match=r"^--cpu-threads 1 is less than one for each of the 2 engines on the CPU$"):
        cpu_threads(1, models)


@pytest.mark.holds("Readiness")
def test_a_padded_model_gets_a_line_in_the_log(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    chosen = settings(model("one"))
    readiness, children, _ = of_processes(made(chosen), chosen)

    with caplog.at_level("INFO", logger="embedline.supervisor"):
        readiness.child_ready(children[0], {"info": {"name": "one", **LOADED}})
        assert "padded" not in caplog.text
        info = {"name": "one", **LOADED, "is_padded": True, "notes": ["padded: for a reason", "another"]}
        readiness.child_ready(children[0], {"info": info})

    assert caplog.messages[-1] == "one runs with padded batches (padded: for a reason)"


@pytest.mark.holds("Equal texts and equal beginnings")
def test_frontends_tell_of_prefixes_where_every_engine_shares_them(made: Made) -> None:
    chosen = settings(model("one", devices="cpu,cpu"))
    readiness, children, _ = of_processes(made(chosen), chosen)
    engines = [child for child in children if child.plan.role == "engine"]
    for shares in ([True, False], [True, True]):
        for engine, one in zip(engines, shares, strict=True):
            readiness.child_ready(engine, {"info": {"name": "one", **LOADED, "shares_prefixes": one}})
        (entry,) = readiness.state()["models"]
        (known,) = ready_state()["models"]
        (served,) = served_models([{**known, "info": known["info"] | entry["info"]}])
        assert served.shares_prefixes == all(shares)


LOADED = {
    "engine": "fake",
    "device": "cpu",
    "reason": "--engine fake",
    "dtype": "float32",
    "max_seqlen": 256,
    "is_padded": False,
}


class FakeChild:
    """A child as Readiness sees one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.is_ready = True
        self.seen = 0
        self.states: list[Any] = []

    def send_state(self, number: int, state: Any) -> None:
        self.states.append((number, state))


def of_processes(topology: Topology, chosen: Settings) -> tuple[Readiness, Any, Page]:
    """Of a server whose processes are all ready, with these and the page."""
    children: Any = [FakeChild(plan) for plan in topology.plans()]
    return Readiness(children, plan_models(chosen), page=topology.page, limits={}), children, topology.page


@pytest.mark.holds("Readiness")
def test_a_model_keeps_its_index_and_every_model_needs_an_engine(made: Made) -> None:
    chosen = settings(model("one", max_input_length=16), model("two"))
    readiness, children, page = of_processes(made(chosen), chosen)
    first, second, *_, frontend = children
    first.is_ready = False

    readiness.child_ready(second, {"info": {"name": "two", **LOADED}})
    readiness.send()

    number, state = frontend.states[-1]
    assert state["ready"] is False
    assert "one" in state["reason"]
    assert [entry["index"] for entry in state["models"]] == [1]
    assert state["names"] == ["one", "two"]

    first.is_ready = True
    readiness.child_ready(first, {"info": {"name": "one", **LOADED}})
    readiness.send()

    number, state = frontend.states[-1]
    assert state["ready"] is True
    assert [entry["index"] for entry in state["models"]] == [0, 1]
    # an engine need not know of --max-input-length
    assert [entry["info"]["max_seqlen"] for entry in state["models"]] == [16, 256]
    page.engines_ready[:] = 1
    assert readiness.why_not_ready() == "a frontend does not have the newest state yet"
    frontend.seen = number
    assert readiness.why_not_ready() is None
    page.engines_ready[0, 1] = 0
    assert readiness.why_not_ready() == "no engine is ready"
    assert second.states == []  # only frontends are told


@pytest.mark.holds("Readiness")
def test_a_frontend_that_is_about_to_accept_is_told_first(made: Made) -> None:
    """It asks for the state, then accepts, then is ready. Meanwhile it refuses nobody either."""
    chosen = settings(model("one"), frontends=2)
    readiness, children, page = of_processes(made(chosen), chosen)
    informed, late = children[-2:]
    late.is_ready = False
    page.engines_ready[:] = 1
    answer = readiness.state_for(late)
    assert answer["models"] == []

    readiness.child_ready(children[0], {"info": {"name": "one", **LOADED}})
    readiness.send()

    informed.seen = informed.states[-1][0]
    assert readiness.why_not_ready() == "a frontend does not have the newest state yet"
    late.seen = late.states[-1][0]
    assert readiness.why_not_ready() is None
    late.seen = 0  # started again: whatever it asks from now on, it is told that all is ready
    assert readiness.why_not_ready() is None
    assert readiness.state_for(late)["ready"]
    assert readiness.why_not_ready() is None


@pytest.mark.holds("Readiness")
@pytest.mark.parametrize("role", ["engine", "tokenizer", "batch manager", "frontend"])
def test_each_kind_of_process_is_needed(role: str, made: Made) -> None:
    """One of a kind is enough."""
    chosen = settings(model("one", devices="a,b"), tokenization_workers=2, batch_managers=2, frontends=2)
    readiness, children, page = of_processes(made(chosen), chosen)
    page.engines_ready[:] = 1
    first, second = [child for child in children if child.plan.role == role]

    reasons = []
    for child in (first, second):
        child.is_ready = False
        reasons.append(readiness.why_not_ready())

    assert reasons == [None, f"no {role} is ready"]


def test_without_jobs_there_is_no_process_of_that_kind(made: Made) -> None:
    plans = made(settings()).plans()

    assert not by_role(plans, "jobs")
    assert all(frontend.start.features == [] for frontend in by_role(plans, "frontend"))


def test_frontends_and_the_jobs_process_reach_each_other(made: Made) -> None:
    plans = made(settings(features=JOBS, frontends=2, max_concurrent_requests=20)).plans()
    (jobs,) = by_role(plans, "jobs")
    starts = [frontend.start.features[0] for frontend in by_role(plans, "frontend")]
    with socket.socket(fileno=os.dup(starts[0].process.listener_fd)) as inherited:
        assert inherited.getsockname() == jobs.start.http_path

    for frontend, start in zip(by_role(plans, "frontend"), starts, strict=True):
        assert (start.name, start.process.secret) == ("jobs", jobs.start.secret)
        assert start.process.listener_fd in frontend.fds
    assert jobs.start.max_in_flight == 5  # a quarter, so that nobody who waits finds all places taken
    assert (jobs.start.flags.jobs, jobs.start.waits_for_folder) == ("/jobs", False)


def without_jobs(made: Made, *, takeover: bool) -> tuple[Readiness, FakeChild]:
    """A server whose other processes are ready, and its jobs process."""
    chosen = settings(features=JOBS, takeover=takeover)
    readiness, children, page = of_processes(made(chosen), chosen)
    page.engines_ready[:] = 1
    (jobs,) = [child for child in children if child.plan.role == "jobs"]
    jobs.is_ready = False
    return readiness, jobs


def test_the_server_is_ready_without_its_jobs_process(made: Made) -> None:
    readiness, jobs = without_jobs(made, takeover=False)
    assert readiness.why_not_ready() == "no jobs is ready"  # another server may have its folder
    readiness.child_ready(jobs, {})  # type: ignore[arg-type]
    assert readiness.why_not_ready() is None
    assert readiness.why_not_ready() is None


def test_a_server_that_takes_over_is_ready_before_it_has_the_folder(made: Made) -> None:
    readiness, _ = without_jobs(made, takeover=True)
    assert readiness.why_not_ready() is None
