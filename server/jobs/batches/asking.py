"""Asks this very server for a line's answer, as a client does, until there is one that counts."""

import asyncio
from collections.abc import Sequence

from server.jobs.http_client import ConnectionLost, HttpAnswer, HttpConnection
from server.jobs.outcomes import BUSY, FAILED_FOR_NOW
from server.jobs.pace import Lane, Pace

MAX_ANSWER_BYTES = 8 << 20  # of one line
_MAX_ATTEMPTS = 3  # that were computed, or lost on the way
_MAX_LOST = 10
_FIRST_PAUSE, _MAX_PAUSE = 0.2, 5.0  # seconds between two attempts, doubling


class Asking:
    """Shares the pace with async requests.

    path, secret  as `server.jobs.runner.Target` has them
    """

    def __init__(self, path: str, secret: str, pace: Pace) -> None:
        self._path = path
        self._secret = secret
        self._pace = pace
        self._idle: list[HttpConnection] = []  # the latest used last; as many as were in flight at a time

    async def ask(self, lane: Lane, route: str, body: bytes, request_id: str, *, accept: str) -> HttpAnswer:
        """What the server answers in the end. Raises ConnectionLost, AnswerTooLarge, Postponed."""
        headers = [
            ("accept", accept),
            ("x-embedline-class", "bulk"),
            ("x-embedline-jobs", self._secret),
            ("x-embedline-owner", lane.owner),
            ("x-request-id", request_id),
        ]
        attempts, lost, pause = 0, 0, _FIRST_PAUSE
        while True:
            try:
                async with self._pace.turn(lane, has_begun=bool(attempts or lost)):
                    answer = await self._answer(route, headers, body)
                    self._pace.learn(lane.owner, answer)
                if answer.status in BUSY:
                    continue  # the pace waits
                attempts += 1
                if answer.status not in FAILED_FOR_NOW or attempts == _MAX_ATTEMPTS:
                    return answer
            except ConnectionLost:
                lost += 1
                if lost == _MAX_LOST:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def _answer(self, route: str, headers: Sequence[tuple[str, str]], body: bytes) -> HttpAnswer:
        connection = self._idle.pop() if self._idle else HttpConnection(self._path)
        try:
            return await connection.post(route, headers, body, max_bytes=MAX_ANSWER_BYTES)
        finally:
            self._idle.append(connection)  # one that was lost connects again

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
