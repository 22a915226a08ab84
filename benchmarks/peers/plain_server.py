"""The server that a competent person writes in an afternoon: FastAPI over sentence-transformers.

    python -m benchmarks.peers.plain_server MODEL_FOLDER PORT

All texts that wait are encoded by one call, in a thread, so that the event loop stays free. The library sorts them by
length and computes them in batches of 8: for mixed lengths on a CPU these take two thirds of the time of its default,
32, since less is padding.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI, Response
from numpy.typing import NDArray
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

MAX_TEXTS = 256  # that are encoded by one call
BATCH_SIZE = 8


class Body(BaseModel):
    """OpenAI's request."""

    input: str | list[str]
    model: str


def make_app(folder: str) -> FastAPI:
    """The application, its model loaded."""
    model = SentenceTransformer(folder, device="cpu")
    waiting: asyncio.Queue[tuple[list[str], asyncio.Future[NDArray[np.float32]]]] = asyncio.Queue()

    # One thread of its own: torch gives each thread that calls it another team of threads.
    thread = ThreadPoolExecutor(max_workers=1)

    def encode(texts: list[str]) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = model.encode(texts, batch_size=BATCH_SIZE, show_progress_bar=False)
        return rows

    async def encode_forever() -> None:
        while True:
            group = [await waiting.get()]
            while not waiting.empty() and sum(len(texts) for texts, _ in group) < MAX_TEXTS:
                group.append(waiting.get_nowait())
            texts = [text for texts, _ in group for text in texts]
            rows = await asyncio.get_running_loop().run_in_executor(thread, encode, texts)
            for its_texts, answer in group:
                own, rows = np.split(rows, [len(its_texts)])
                if not answer.cancelled():
                    answer.set_result(own)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(encode_forever())
        yield
        task.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/embeddings")
    async def embeddings(body: Body) -> Response:
        answer: asyncio.Future[NDArray[np.float32]] = asyncio.get_running_loop().create_future()
        waiting.put_nowait(([body.input] if isinstance(body.input, str) else body.input, answer))
        data = [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(await answer)]
        content = orjson.dumps({"object": "list", "model": body.model, "data": data}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(content, media_type="application/json")

    return app


if __name__ == "__main__":
    uvicorn.run(make_app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
