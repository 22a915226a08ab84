"""When the supervisor goes on without a process that can't be started, and when it ends the server. No process is."""

import asyncio
import signal
from collections.abc import Callable
from functools import partial

import pytest

from server.features.pipelines.feature import PipelinesFlags
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.child import ChildProcess, Plan, SpawnError
from server.supervisor.listeners import Listeners, bind
from server.supervisor.model_plan import plan_models
from server.supervisor.socket_folder import SocketFolder
from server.supervisor.supervisor import Restarts, Supervisor
from server.supervisor.topology import Topology
from tests.server_e2e.running import PATIENCE
from wire.control import Json


class Fallen:
    """A supervisor whose processes fall; what it is asked to start again is noted and not started."""

    def __init__(
        self,
        folder: SocketFolder,
        monkeypatch: pytest.MonkeyPatch,
        *devices: str,
        pipelines: str | None = None,
        topology: str = "spread",
    ) -> None:
        self.started: list[str] = []
        monkeypatch.setattr(ChildProcess, "start", lambda child: self._start(child))
        model_settings = (ModelSettings(engine="fake", devices=",".join(devices)),)
        settings = Settings(models=model_settings, features=(PipelinesFlags(pipelines=pipelines),), topology=topology)
        models = plan_models(settings)
        with bind("127.0.0.1", 0, "--port") as http:
            processes = Topology(settings, models, folder=folder, http=[http])
        listeners = Listeners([http], kept_elsewhere=True)
        self.page = processes.page
        self.supervisor = Supervisor(processes, models, settings, http=[listeners], limits={})
        self.children = {child.plan.title: child for child in self.supervisor._children}

    async def _start(self, child: ChildProcess) -> None:
        self.started.append(child.plan.title)

    def fall(self, title: str, times: int, returncode: int = 70) -> None:
        for _ in range(times):
            self.supervisor.child_exited(self.children[title], returncode)

    @property
    def end(self) -> tuple[int, str] | None:
        ending = self.supervisor._shutdown.ending
        return (ending.result().code, ending.result().message) if ending.done() else None


@pytest.fixture
def fallen(folder: SocketFolder, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fallen]:
    return partial(Fallen, folder, monkeypatch)


@pytest.mark.holds("When a process dies")
async def test_five_failed_starts_end_the_server_unless_another_does_the_same_work(
    fallen: Callable[..., Fallen],
) -> None:
    server = fallen("a", "b")
    server.fall("engine 0", 5)
    assert server.end is None  # engine 1 may yet serve
    server.fall("engine 1", 4)
    assert server.end is None
    server.fall("engine 1", 1)
    assert server.end == (1, "engine 1 can't be started: exit status 70")


@pytest.mark.holds("When a process dies", "Readiness")
async def test_two_equal_faults_end_the_server_unless_another_does_the_same_work(fallen: Callable[..., Fallen]) -> None:
    server = fallen("a", "b")
    server.children["engine 0"].stage = server.children["engine 1"].stage = "weights"
    server.fall("engine 0", 2, -signal.SIGSEGV)
    server.fall("engine 1", 1, -signal.SIGSEGV)
    assert server.end is None
    how = 'SIGSEGV in the stage "weights"'
    ends = f"engine 0 ended: {how}; engine 1 ended: {how}"
    assert server.supervisor.why_not_ready() == f"no engine is ready ({ends})"
    server.fall("engine 1", 1, -signal.SIGSEGV)
    assert server.end == (1, f"engine 1 can't be started: {how}")


@pytest.mark.parametrize("title", ["engine 0", "batch manager 0", "tokenizer 0", "frontend 0"])
async def test_the_only_one_of_its_kind_ends_it(title: str, fallen: Callable[..., Fallen]) -> None:
    server = fallen("cpu")
    others = [name for name in server.children if name.rpartition(" ")[0] == title.rpartition(" ")[0]]
    for other in others:
        server.fall(other, 4)
    assert server.end is None
    for other in others:
        server.fall(other, 1)
    assert server.end is not None
    assert server.end[0] == 1


@pytest.mark.holds("When a process dies", "Readiness")
@pytest.mark.parametrize(
    ("topology", "title", "forgotten"),
    [
        ("spread", "frontend 0", {"frontend 0"}),
        ("spread", "batch manager 0", {"batch manager 0"}),
        ("compact", "frontend 0", {"frontend 0", "batch manager 0"}),
    ],
)
async def test_whatever_died_with_a_process_is_forgotten(
    topology: str, title: str, forgotten: set[str], fallen: Callable[..., Fallen]
) -> None:
    """An engine that only a dead batch manager could reach takes no batch."""
    server = fallen("a", topology=topology)
    page, metrics = server.page, server.supervisor.metrics
    page.admitted_tokens[0], page.engines_ready[0] = 5, 1
    gauges = {"frontend 0": "embedline_open_requests", "batch manager 0": "embedline_queue_sequences"}
    metrics.absorb({"levels": [[gauge, its, 1] for its, gauge in gauges.items()]})

    server.fall(title, 1)

    assert page.admitted_tokens.any() == ("frontend 0" not in forgotten)
    assert page.engines_ready.any() == ("batch manager 0" not in forgotten)
    shown = {its for its, gauge in gauges.items() if f'{gauge}{{process="{its}"}}' in metrics.text()}
    assert shown == gauges.keys() - forgotten


@pytest.mark.holds("When a process dies")
@pytest.mark.parametrize(
    ("returncode", "was_stuck", "is_blamed"),
    [(1, False, True), (-signal.SIGSEGV, False, True), (-signal.SIGKILL, True, True), (-signal.SIGKILL, False, False)],
)
async def test_a_text_is_to_blame_for_a_death_but_not_for_a_kill_from_outside(
    returncode: int, was_stuck: bool, is_blamed: bool, fallen: Callable[..., Fallen]
) -> None:
    server = fallen("a", topology="compact")
    server.page.tokenizing[0] = 5
    server.children["frontend 0"].was_killed = was_stuck

    server.fall("frontend 0", 1, returncode)

    assert server.page.tokenizing[0] == (5 if is_blamed else 0)


@pytest.mark.parametrize("has_served", [False, True])
async def test_pipelines_that_never_start_end_it_and_others_are_tried_for_ever(
    has_served: bool, fallen: Callable[..., Fallen]
) -> None:
    server = fallen("cpu", pipelines=__file__)
    if has_served:
        server.supervisor.child_ready(server.children["pipelines 0"], {})
    server.fall("pipelines 0", 6)
    assert server.end == (None if has_served else (1, "pipelines 0 can't be started: exit status 70"))


@pytest.mark.faults
@pytest.mark.holds("When a process dies")
async def test_a_restart_that_fails_is_tried_again(
    fallen: Callable[..., Fallen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as another process does the same work it is never given up."""
    tries: list[str] = []
    is_started = asyncio.Event()
    server = fallen("a", "b")

    async def start(child: ChildProcess) -> None:
        tries.append(child.plan.title)
        if len(tries) < 7:
            raise SpawnError("engine 0 can't be started: python: Too many open files")
        is_started.set()

    monkeypatch.setattr(ChildProcess, "start", start)
    set_already = asyncio.Event()
    set_already.set()
    monkeypatch.setattr("server.supervisor.supervisor.asyncio.sleep", lambda _: set_already.wait())
    server.fall("engine 0", 1)
    await is_started.wait()
    assert server.end is None
    assert tries == ["engine 0"] * 7


class Dying:
    """A child that ends when it is told to."""

    def __init__(self, plan: Plan, stopped: list[tuple[str, float]]) -> None:
        self.plan = plan
        self.is_ready = True
        self.seen = 0
        self._stopped = stopped

    def send_state(self, number: int, state: Json) -> None:
        self.seen = number

    async def stop(self, seconds: float) -> bool:
        self._stopped.append((self.plan.role, seconds))
        return True


@pytest.mark.holds("Shutdown")
async def test_processes_end_in_the_reverse_order_of_their_start(fallen: Callable[..., Fallen]) -> None:
    """Frontends have --shutdown-timeout and five seconds for what they hold, the others five."""
    stopped: list[tuple[str, float]] = []
    server = fallen("a")
    children = server.supervisor._children
    children[:] = [Dying(child.plan, stopped) for child in children]  # type: ignore[misc]
    await server.supervisor._shutdown.stop_frontends(30)
    await server.supervisor._shutdown.stop_others()
    assert list(dict.fromkeys(stopped)) == [
        ("frontend", 35.0),
        ("batch manager", 5.0),
        ("tokenizer", 5.0),
        ("engine", 5.0),
    ]


@pytest.mark.holds("Shutdown")
async def test_while_requests_are_finished_whatever_computes_them_is_started_again(
    fallen: Callable[..., Fallen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as connections are accepted, frontends too."""
    asking, let_go = asyncio.Event(), asyncio.Event()

    async def stop(child: ChildProcess, seconds: float) -> bool:
        asking.set()
        await let_go.wait()
        return True

    server = fallen("a")
    supervisor = server.supervisor
    everything = list(server.children)

    async def restarted() -> list[str]:
        server.started.clear()
        for title in everything:
            server.fall(title, 1)
        await asyncio.sleep(0)
        return server.started

    monkeypatch.setattr(ChildProcess, "stop", stop)
    monkeypatch.setattr(Restarts, "failed", lambda *_: 0.0)
    supervisor._signalled(60.0)
    assert await restarted() == everything
    ending = asyncio.create_task(supervisor._shutdown.stop_frontends(30))
    await asking.wait()
    assert await restarted() == [title for title in everything if not title.startswith("frontend")]
    let_go.set()
    await ending
    await supervisor._shutdown.stop_others()
    assert await restarted() == []


@pytest.mark.holds("Shutdown")
@pytest.mark.parametrize(
    ("was_ready", "signals", "delay"),
    [(True, ["TERM"], 60.0), (True, ["INT"], 0.0), (False, ["TERM"], 0.0), (True, ["INT", "TERM"], 0.0)],
)
async def test_only_sigterm_of_a_server_that_served_waits_for_balancers(
    fallen: Callable[..., Fallen], was_ready: bool, signals: list[str], delay: float
) -> None:
    server = fallen("a")
    told: list[None] = []
    server.supervisor.on_stopping = lambda: told.append(None)
    server.supervisor._readiness.was_ready = was_ready
    for name in signals:
        server.supervisor._signalled(*([60.0] if name == "TERM" else []))
    assert server.supervisor._shutdown.ending.result().delay == delay
    assert server.supervisor._readiness.state()["draining"]
    assert len(told) == 1


async def test_one_that_ends_by_itself_says_so_too(fallen: Callable[..., Fallen]) -> None:
    """Its sockets soon refuse connections, so no server may take them over."""
    server = fallen("a")
    told: list[None] = []
    server.supervisor.on_stopping = lambda: told.append(None)
    server.fall("batch manager 0", 5)
    assert server.end is not None
    assert len(told) == 1


@pytest.mark.parametrize("who", ["a second signal", "a successor"])
async def test_the_delay_ends_early(who: str, fallen: Callable[..., Fallen]) -> None:
    server = fallen("a")
    server.supervisor._signalled(3600.0)
    draining = asyncio.create_task(server.supervisor._shutdown.drain(3600.0, was_ready=False))
    await asyncio.sleep(0)
    if who == "a successor":
        server.supervisor.taken_over(1)
    else:
        server.supervisor._signalled(3600.0)
    await asyncio.wait_for(draining, PATIENCE)
