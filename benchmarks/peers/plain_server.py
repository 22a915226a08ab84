"""The server that a competent person writes in an afternoon: FastAPI over sentence-transformers or ONNX Runtime.

sentence-transformers computes with torch or OpenVINO, or is its CrossEncoder.

    python -m benchmarks.peers.plain_server LIBRARY MODEL_FOLDER PORT

All texts that wait are encoded by one call, in a thread, so that the event loop stays free. They are sorted by length
and computed in batches of 8: for mixed lengths on a CPU these take two thirds of the time of the library's default, 32,
since less is padding. Imports what an environment of make_env.sh has, and nothing of Embedline.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI, Response
from numpy.typing import NDArray
from pydantic import BaseModel

MAX_TEXTS = 256  # that are encoded by one call
BATCH_SIZE = 8
MAX_TOKENS = 256  # of a text, as all-MiniLM-L6-v2's own settings say

Encode = Callable[[list[str]], NDArray[np.float32]]


class Body(BaseModel):
    """OpenAI's request."""

    input: str | list[str]
    model: str


class RerankBody(BaseModel):
    """Cohere's request."""

    query: str
    documents: list[str]
    model: str


def sentence_transformers(folder: str, backend: Literal["torch", "openvino"] = "torch") -> Encode:
    """The library's own sorting and batches."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", backend=backend)

    def encode(texts: list[str]) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = model.encode(texts, batch_size=BATCH_SIZE, show_progress_bar=False)
        return rows

    return encode


def onnxruntime(folder: str) -> Encode:
    """An exported model (model.onnx) whose rows are means over the tokens, of length 1."""
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

    session = InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
    names = {argument.name for argument in session.get_inputs()}
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()  # of each batch, to its longest text

    def encode_batch(texts: list[str]) -> NDArray[np.float32]:
        encodings = tokenizer.encode_batch(texts)
        inputs = {
            "input_ids": np.array([one.ids for one in encodings], np.int64),
            "attention_mask": np.array([one.attention_mask for one in encodings], np.int64),
            "token_type_ids": np.array([one.type_ids for one in encodings], np.int64),
        }
        (states, *_) = session.run(None, {name: inputs[name] for name in names})
        mask = inputs["attention_mask"][:, :, None].astype(np.float32)
        means: NDArray[np.float32] = (states * mask).sum(axis=1) / mask.sum(axis=1)
        return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True), np.float32)

    def encode(texts: list[str]) -> NDArray[np.float32]:
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        groups = [order[at : at + BATCH_SIZE] for at in range(0, len(order), BATCH_SIZE)]
        rows = np.concatenate([encode_batch([texts[at] for at in group]) for group in groups])
        return rows[np.argsort(order)]

    return encode


def cross_encoder(folder: str) -> FastAPI:
    """A reranker, whose requests are computed one by one."""
    from sentence_transformers import CrossEncoder

    model, app, thread = CrossEncoder(folder, device="cpu"), FastAPI(), ThreadPoolExecutor(max_workers=1)

    @app.post("/rerank")
    async def rerank(body: RerankBody) -> Response:
        pairs = [(body.query, document) for document in body.documents]
        predict = partial(model.predict, batch_size=BATCH_SIZE, show_progress_bar=False)
        scores = await asyncio.get_running_loop().run_in_executor(thread, predict, pairs)
        results = [{"index": at, "relevance_score": float(scores[at])} for at in np.argsort(-scores).tolist()]
        return Response(orjson.dumps({"results": results}), media_type="application/json")

    return app


def make_app(encode: Encode) -> FastAPI:
    """The application, its model loaded."""
    waiting: asyncio.Queue[tuple[list[str], asyncio.Future[NDArray[np.float32]]]] = asyncio.Queue()

    # One thread of its own: torch gives each thread that calls it another team of threads.
    thread = ThreadPoolExecutor(max_workers=1)

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


LIBRARIES: dict[str, Callable[[str], FastAPI]] = {
    "sentence-transformers": lambda folder: make_app(sentence_transformers(folder)),
    "sentence-transformers-openvino": lambda folder: make_app(sentence_transformers(folder, "openvino")),
    "onnxruntime": lambda folder: make_app(onnxruntime(folder)),
    "cross-encoder": cross_encoder,
}

if __name__ == "__main__":
    library, folder, port = sys.argv[1:]
    uvicorn.run(LIBRARIES[library](folder), host="127.0.0.1", port=int(port), log_level="warning")
