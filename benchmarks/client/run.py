"""One client embeds texts, in a process of its own, so that its memory is its own too.

    python -m benchmarks.client.run CLIENT URL COUNT

Prints JSON: seconds until the client has given its answer, CPU seconds until then, the highest resident size, and a
checksum of the rows as float32. What it takes to make an array of an answer that is none is not counted.
"""

import asyncio
import json
import resource
import sys
import time
import zlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH = 128
IN_FLIGHT = 32
WIDTH = 1024
Rows = NDArray[np.float32]
Client = Callable[[str, list[str]], Callable[[], Rows]]  # embeds, and gives what makes rows of its answer


def ours(url: str, texts: list[str]) -> Callable[[], Rows]:
    from embedline import Client

    with Client(url, model="m") as client:
        return client.embed(texts).numpy


def ours_async(url: str, texts: list[str]) -> Callable[[], Rows]:
    from embedline import AsyncClient

    async def embed() -> Callable[[], Rows]:
        async with AsyncClient(url, model="m") as client:
            return (await client.embed(texts)).numpy

    return asyncio.run(embed())


def openai(url: str, texts: list[str]) -> Callable[[], Rows]:
    """As it comes: base64, which it decodes into lists."""
    from openai import AsyncOpenAI

    async def embed() -> list[Any]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            return await _in_flight(lambda part: client.embeddings.create(model="m", input=part), texts)

    found = asyncio.run(embed())
    return lambda: np.array([item.embedding for answer in found for item in answer.data], np.float32)


def baseten(url: str, texts: list[str]) -> Callable[[], Rows]:
    """As it comes: floats."""
    from baseten_performance_client import PerformanceClient, RequestProcessingPreference

    client = PerformanceClient(url, api_key="none")
    preference = RequestProcessingPreference(batch_size=BATCH, max_concurrent_requests=IN_FLIGHT)
    answer = client.embed(input=texts, model="m", preference=preference)
    return lambda: np.asarray(answer.numpy(), np.float32)


def aiohttp_raw(url: str, texts: list[str]) -> Callable[[], Rows]:
    """Raw rows into one array, by hand."""
    rows = np.empty((len(texts), WIDTH), np.float32)

    def keep(start: int, body: bytes) -> None:
        part = np.frombuffer(body, "<f4").reshape(-1, WIDTH)
        rows[start : start + len(part)] = part

    asyncio.run(_by_aiohttp(url, texts, "bytes", keep))
    return lambda: rows


def aiohttp_base64(url: str, texts: list[str]) -> Callable[[], Rows]:
    """Base64 into one array, by hand, with orjson."""
    import binascii

    import orjson

    rows = np.empty((len(texts), WIDTH), np.float32)

    def keep(start: int, body: bytes) -> None:
        for at, item in enumerate(orjson.loads(body)["data"]):
            rows[start + at] = np.frombuffer(binascii.a2b_base64(item["embedding"]), "<f4")

    asyncio.run(_by_aiohttp(url, texts, "base64", keep))
    return lambda: rows


async def _by_aiohttp(url: str, texts: list[str], form: str, keep: Callable[[int, bytes], None]) -> None:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def embed(start: int) -> None:
            body = {"model": "m", "input": texts[start : start + BATCH], "encoding_format": form}
            async with session.post(f"{url}/v1/embeddings", json=body) as answer:
                assert answer.status == 200
                keep(start, await answer.read())

        await asyncio.gather(*(embed(start) for start in range(0, len(texts), BATCH)))


async def _in_flight(ask: Callable[[list[str]], Coroutine[Any, Any, Any]], texts: Sequence[str]) -> list[Any]:
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(start: int) -> Any:
        async with room:
            return await ask(list(texts[start : start + BATCH]))

    return await asyncio.gather(*(one(start) for start in range(0, len(texts), BATCH)))


CLIENTS: dict[str, Client] = {
    "ours": ours,
    "ours_async": ours_async,
    "openai": openai,
    "baseten": baseten,
    "aiohttp_raw": aiohttp_raw,
    "aiohttp_base64": aiohttp_base64,
}


def main() -> None:
    name, url, count = sys.argv[1:]
    texts = [f"This is text number {number} of the corpus." for number in range(int(count))]
    CLIENTS[name](url, texts[:BATCH])  # what is imported and compiled with the first use
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    rows_of = CLIENTS[name](url, texts)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    rows = rows_of()
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                "peak_mb": after.ru_maxrss * 1024 / 1e6,
                "shape": rows.shape,
                "checksum": zlib.crc32(np.ascontiguousarray(rows, "<f4").data.cast("B")),
            }
        )
    )


if __name__ == "__main__":
    main()
