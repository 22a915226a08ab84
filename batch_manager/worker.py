"""The batch manager's process: sockets, the shared page and a clock around the scheduler.

START names "listener_fd" (the listening Unix socket for frontends), "page_fd", "models" (names), "engines"
({"path", "model"}) and "policy" (fields of `Policy`).
"""

import socket

from batch_manager.manager import Manager
from batch_manager.policy import Policy
from wire import connection
from wire.child import Child, run
from wire.page import Page


async def serve(child: Child) -> None:
    """Serve frontends until told to stop; then finish or refuse what is held."""
    spec = child.spec
    page = Page.attach(spec["page_fd"])
    policy = Policy(**spec["policy"])
    manager = Manager(spec["models"], policy, page=page, index=child.index, metrics=child.metrics)
    server = await connection.serve(
        socket.socket(fileno=spec["listener_fd"]),
        manager.frontend_frame,
        manager.frontend_made,
        manager.frontend_lost,
    )
    for engine in spec["engines"]:
        manager.add_engine(engine["path"], model=engine["model"])
    child.ready()
    try:
        await child.stopping.wait()
        await manager.drain()
    finally:
        server.close()
        await manager.close()


if __name__ == "__main__":
    run(serve)
