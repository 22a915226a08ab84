"""A process that adds and finishes requests until it is killed, and says each that was acknowledged: FOLDER FIRST."""

import asyncio
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from server.features.jobs.store.sqlite import open_sqlite
from server.features.jobs.store.store import Store
from server.features.jobs.types import Finished, Result, Status
from tests.server.jobs.store.stores import request


def say(what: str, number: int, request_id: str) -> None:
    os.write(1, f"{what} {number} {request_id}\n".encode())


async def add(store: Store, numbers: Iterator[int]) -> None:
    for number in numbers:
        say("added", number, await store.requests.add(request(number, idempotency_key=str(number))))


async def finish(store: Store) -> None:
    while True:
        for claimed in await store.requests.claim(4):
            await store.requests.finish(claimed.request_id, Finished(Status.SUCCEEDED, Result(200, (), claimed.body)))
            say("finished", int(claimed.body.removeprefix(b"body ")), claimed.request_id)
        await store.requests.claimable(60)


async def main(folder: Path, first: int) -> None:
    store = await open_sqlite(folder)
    numbers = itertools.count(first)
    await asyncio.gather(*(add(store, numbers) for _ in range(8)), finish(store))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
