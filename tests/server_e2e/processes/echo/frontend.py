"""What the planted feature does in a frontend."""

import asyncio
import itertools
import logging
import socket

from server.dialects.answers import Answer, openai_error
from server.dialects.route import Response, Route
from server.frontend.parts import Part, Shared, bound
from server.frontend.start import FeatureStart, ProcessAddress
from server.http.body import ASGIApp
from server.http.request import HttpRequest
from wire.connection import Link

logger = logging.getLogger("embedline.server")


class EchoPart(Part):
    def __init__(self, address: ProcessAddress) -> None:
        self.listeners = [socket.socket(fileno=address.listener_fd)]
        self.routes = bound(ROUTES, self)
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


async def echo(part: EchoPart, call: HttpRequest) -> Answer:
    return Answer(200, [(b"content-type", b"text/plain; charset=utf-8")], await part.echoed(call.owner))


ROUTES = (
    Route(
        method="GET",
        path="/echo",
        answer=echo,
        error_shape=openai_error,
        summary="The word of --echo",
        responses={200: Response("The word")},
    ),
)


def make_part(start: FeatureStart, shared: Shared) -> EchoPart:
    address = start.process
    assert address is not None
    shared.keys.let_act(address.secret)
    return EchoPart(address)
