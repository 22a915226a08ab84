"""`AsyncClient`: the same client for asyncio. Each call runs in a thread; cancelling the task aborts its requests."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from embedline.client.client import Client, Inputs
from embedline.client.preference import CancellationToken, RequestProcessingPreference
from embedline.client.responses import (
    BatchPostResponse,
    ClassifyResponse,
    EmbeddedSlice,
    EmbedResponse,
    RerankResponse,
)

_MAX_CALLS = 64  # at a time; others wait

R = TypeVar("R")


class AsyncClient:
    """As `Client`, with the same arguments and errors. Iterators that are given as inputs are read in a thread."""

    def __init__(
        self,
        base_url: str | Sequence[str],
        api_key: str | None = None,
        *,
        model: str | None = None,
        preference: RequestProcessingPreference | None = None,
        max_connections: int = 128,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._client = Client(
            base_url,
            api_key,
            model=model,
            preference=preference,
            max_connections=max_connections,
            ssl_context=ssl_context,
        )
        self._threads = ThreadPoolExecutor(_MAX_CALLS, thread_name_prefix="embedline calls")

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calls that are under way end with an error."""
        self._client.close()
        self._threads.shutdown(wait=False)

    async def embed(
        self,
        input: Inputs,
        model: str | None = None,
        *,
        dimensions: int | None = None,
        user: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        preference: RequestProcessingPreference | None = None,
        progress: bool = False,
    ) -> EmbedResponse:
        """As Client.embed."""
        with self._cancellable(preference) as own:
            return await self._in_thread(
                lambda: self._client.embed(
                    input,
                    model,
                    dimensions=dimensions,
                    user=user,
                    extra_body=extra_body,
                    preference=own,
                    progress=progress,
                ),
                own,
            )

    async def iter_embed(
        self,
        input: Inputs,
        model: str | None = None,
        *,
        dimensions: int | None = None,
        user: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        preference: RequestProcessingPreference | None = None,
        progress: bool = False,
    ) -> AsyncGenerator[EmbeddedSlice, None]:
        """As Client.iter_embed."""
        with self._cancellable(preference) as own:
            slices = self._client.iter_embed(
                input,
                model,
                dimensions=dimensions,
                user=user,
                extra_body=extra_body,
                preference=own,
                progress=progress,
            )
            try:
                while (part := await self._in_thread(lambda: next(slices, None), own)) is not None:
                    yield part
            finally:
                await asyncio.to_thread(slices.close)  # aborts what is in flight, and waits for its end

    async def rerank(
        self,
        query: str,
        texts: Sequence[str],
        model: str | None = None,
        *,
        raw_scores: bool | None = None,
        truncate: bool | None = None,
        truncation_direction: str | None = None,
        preference: RequestProcessingPreference | None = None,
        progress: bool = False,
    ) -> RerankResponse:
        """As Client.rerank."""
        with self._cancellable(preference) as own:
            return await self._in_thread(
                lambda: self._client.rerank(
                    query,
                    texts,
                    model,
                    raw_scores=raw_scores,
                    truncate=truncate,
                    truncation_direction=truncation_direction,
                    preference=own,
                    progress=progress,
                ),
                own,
            )

    async def classify(
        self,
        inputs: Sequence[str | Sequence[str]],
        model: str | None = None,
        *,
        raw_scores: bool | None = None,
        truncate: bool | None = None,
        truncation_direction: str | None = None,
        preference: RequestProcessingPreference | None = None,
        progress: bool = False,
    ) -> ClassifyResponse:
        """As Client.classify."""
        with self._cancellable(preference) as own:
            return await self._in_thread(
                lambda: self._client.classify(
                    inputs,
                    model,
                    raw_scores=raw_scores,
                    truncate=truncate,
                    truncation_direction=truncation_direction,
                    preference=own,
                    progress=progress,
                ),
                own,
            )

    async def batch_post(
        self,
        url_path: str,
        payloads: Sequence[Any],
        *,
        method: str = "POST",
        preference: RequestProcessingPreference | None = None,
        progress: bool = False,
    ) -> BatchPostResponse:
        """As Client.batch_post."""
        with self._cancellable(preference) as own:
            return await self._in_thread(
                lambda: self._client.batch_post(url_path, payloads, method=method, preference=own, progress=progress),
                own,
            )

    @contextmanager
    def _cancellable(self, preference: RequestProcessingPreference | None) -> Iterator[RequestProcessingPreference]:
        """The preference with a token of this call's own, which the caller's token cancels too."""
        chosen = preference or self._client.preference
        given, token = chosen.cancel_token, CancellationToken()
        if given is not None:
            given.watch(token.cancel)
        try:
            yield replace(chosen, cancel_token=token)
        finally:
            if given is not None:
                given.forget(token.cancel)

    async def _in_thread(self, call: Callable[[], R], own: RequestProcessingPreference) -> R:
        """Its result. If the task is cancelled the call is too, and its end is waited for."""
        running = self._threads.submit(call)
        answer = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not running.cancel():
                assert own.cancel_token is not None
                own.cancel_token.cancel()
                await asyncio.wait([answer])
                _forget_error(answer)
            raise


def _forget_error(answer: "asyncio.Future[Any]") -> None:
    """Nobody will ask for it, and asyncio would complain."""
    if not answer.cancelled():
        answer.exception()
