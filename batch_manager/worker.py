"""The batch manager's process: sockets, the shared page and a clock around the scheduler."""

import socket
import time

from batch_manager.manager import Manager
from batch_manager.messages import ManagerStart
from wire import connection
from wire.child import Child, run
from wire.page import Page


async def serve(child: Child, start: ManagerStart) -> None:
    """Serve frontends until STOP; then finish or refuse the requests that are held."""
    page = Page.attach(start.page_fd)
    manager = Manager(start.models, start.policy, page=page, index=child.index, metrics=child.metrics)
    server = await connection.serve(
        socket.socket(fileno=start.listener_fd),
        manager.frontend_frame,
        manager.frontend_made,
        manager.frontend_lost,
    )
    child.on_beat = lambda: manager.publisher.publish(time.monotonic())  # shows that this process runs
    for engine in start.engines:
        manager.add_engine(engine)
    child.ready()
    try:
        await child.stopping.wait()
        await manager.drain()
    finally:
        server.close()
        await manager.close()


if __name__ == "__main__":
    run(serve, ManagerStart)
