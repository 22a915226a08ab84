"""The server that a competent person writes in an afternoon: FastAPI over sentence-transformers.

    python -m benchmarks.plain_server MODEL_FOLDER PORT

Texts that wait are encoded together, in a thread, so that the event loop stays free.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

MAX_TEXTS = 64  # that are encoded together; the library cuts them into batches of 32, sorted by length


class Body(BaseModel):
    """OpenAI's request."""

    input: str | list[str]
    model: str


def make_app(folder: str) -> FastAPI:
    """The application, its model loaded."""
    model = SentenceTransformer(folder, device="cpu")
    waiting: asyncio.Queue[tuple[list[str], asyncio.Future[list[list[float]]]]] = asyncio.Queue()

    async def encode_forever() -> None:
        while True:
            group = [await waiting.get()]
            while not waiting.empty() and sum(len(texts) for texts, _ in group) < MAX_TEXTS:
                group.append(waiting.get_nowait())
            texts = [text for texts, _ in group for text in texts]
            rows = (await asyncio.to_thread(model.encode, texts, show_progress_bar=False)).tolist()
            for its_texts, answer in group:
                if not answer.cancelled():
                    answer.set_result(rows[: len(its_texts)])
                del rows[: len(its_texts)]

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(encode_forever())
        yield
        task.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/embeddings")
    async def embeddings(body: Body) -> dict[str, Any]:
        answer: asyncio.Future[list[list[float]]] = asyncio.get_running_loop().create_future()
        waiting.put_nowait(([body.input] if isinstance(body.input, str) else body.input, answer))
        data = [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(await answer)]
        return {"object": "list", "model": body.model, "data": data}

    return app


if __name__ == "__main__":
    uvicorn.run(make_app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
