"""The pipelines process: `python -P -m server.pipelines.main <control fd> <supervisor pid>`. It alone runs users' code.

That code was given on the command line, and may do what this user may. If it ends this process, the supervisor starts
it again; if it blocks the event loop, the watchdog ends it.
"""

import socket

from server.pipelines.loading import PipelinesUnusable, load
from server.pipelines.messages import PipelinesStart
from server.pipelines.runs import Clients, Runs
from server.pipelines.service import Service
from wire.child import Child, StartError, run


async def serve(child: Child, start: PipelinesStart) -> None:
    """The role. Raises StartError."""
    clients = Clients(start.http_path, start.secret)
    try:
        runs = Runs(load(start.file), clients, most=start.max_runs, metrics=child.metrics)
    except PipelinesUnusable as error:
        raise StartError(str(error)) from None
    child.metrics.watch("embedline_pipelines_running", child.title, level=lambda: runs.num_open)
    service = Service(runs.listing(), runs.run)
    await service.start(socket.socket(fileno=start.listener_fd))
    child.ready()
    await child.stopping.wait()
    service.stop()
    clients.close()


if __name__ == "__main__":
    run(serve, PipelinesStart, exits_on_error=False)
