"""The engine in this process group: the server's own processes, reached by a Unix socket that only this user can open.

The supervisor has the main thread, as it handles signals. The job runs in a thread beside it.
"""

import asyncio
import dataclasses
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future

from server.settings.settings import Settings
from server.supervisor.listeners import UnixPort
from server.supervisor.model_files import cache_folder
from server.supervisor.model_plan import ModelPlan, plan_models
from server.supervisor.resources import check_memory
from server.supervisor.socket_folder import SocketFolder
from server.supervisor.supervisor import Supervisor
from server.supervisor.topology import Topology
from wire.process import begin

Work = Callable[[str], int]  # gets the URL of the server; the exit code


def run(settings: Settings, work: Work, *, cancel: Callable[[], None]) -> int:
    """Start the engine, have the work done, stop; the exit code. `cancel`: called when the server stops, as after a
    signal. Raises SettingsError and ModelError before anything is started, and what the work raises."""
    settings = dataclasses.replace(settings, log_level="warning", request_log="off", frontends=1)
    models = plan_models(settings)
    check_memory(models)
    begin("backfill", settings.log_level)
    folder = SocketFolder()
    try:
        return asyncio.run(_run(settings, models, folder, work, cancel))
    finally:
        folder.remove()


async def _run(
    settings: Settings, models: list[ModelPlan], folder: SocketFolder, work: Work, cancel: Callable[[], None]
) -> int:
    path = folder.path / "http.sock"
    port = UnixPort(str(path))
    compiles = any(model.engine != "fake" for model in models)
    cache_dir = cache_folder(settings.compiled_cache, os.environ) if compiles else None
    topology = Topology(settings, models, folder=folder, http=(), uds=port.socket, cache_dir=cache_dir)
    supervisor = Supervisor(topology, models, settings, http=[port], limits={})
    port.publish()
    loop = asyncio.get_running_loop()
    result: Future[int] = Future()

    def run_work() -> None:
        try:
            result.set_result(work(f"unix://{path}"))
        except BaseException as error:
            result.set_exception(error)
        loop.call_soon_threadsafe(supervisor.stop)

    thread = threading.Thread(target=run_work, name="embedline backfill")
    supervisor.on_ready = thread.start
    supervisor.on_stopping = cancel
    code = await supervisor.run(drain_delay=0, shutdown_seconds=settings.shutdown_timeout)
    if thread.ident is None:
        return code or 1
    await asyncio.to_thread(thread.join)
    return result.result()
