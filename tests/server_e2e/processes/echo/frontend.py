"""What the planted feature does in a frontend."""

import asyncio
import itertools
import logging
import socket

from fastapi import FastAPI, Request, Response

from server.frontend.parts import Part, Shared
from server.frontend.start import FeatureStart, ProcessAddress
from server.http.body import OWNER, ASGIApp
from wire.connection import Link

logger = logging.getLogger("embedline.server")


class EchoPart(Part):
    def __init__(self, address: ProcessAddress) -> None:
        self.listeners = [socket.socket(fileno=address.listener_fd)]
        self._is_up = asyncio.Event()
        self._link = Link(address.path, on_frame=self._received, on_up=self._is_up.set, on_down=self._is_up.clear)
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = itertools.count(1)

    def _received(self, kind: int, number: int, payload: memoryview) -> None:
        self._answers.pop(number).set_result(bytes(payload))

    async def echoed(self, owner: str) -> bytes:
        await self._is_up.wait()
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        self._link.send(1, number, [owner.encode()])
        return await self._answers[number]

    def add_routes(self, app: FastAPI) -> None:
        add_echo(app, self)

    async def open(self, app: ASGIApp) -> None:
        self._link.open()

    async def start(self) -> None:
        logger.info("echo: starts")

    async def stop(self, seconds: float) -> None:
        logger.info("echo: stops")

    async def stop_last(self, seconds: float) -> None:
        logger.info("echo: stops last")

    def close(self) -> None:
        logger.info("echo: closes")
        self._link.close()


def add_echo(app: FastAPI, part: EchoPart | None = None) -> None:
    async def echo(request: Request) -> Response:
        assert part is not None
        return Response(await part.echoed(request.scope[OWNER]), media_type="text/plain")

    app.add_api_route("/echo", echo, methods=["GET"], summary="The word of --echo")


def make_part(start: FeatureStart, shared: Shared) -> EchoPart:
    address = start.process
    assert address is not None
    shared.keys.let_act(address.secret)
    return EchoPart(address)
