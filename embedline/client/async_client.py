"""`AsyncClient`: the same client for asyncio. Each call runs in a thread; cancelling the task aborts its requests."""

import asyncio
import contextlib
import ssl
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from embedline.client.client import Client, Inputs
from embedline.client.errors import Cancelled
from embedline.client.preference import CancellationToken, RequestProcessingPreference
from embedline.client.responses import (
    BatchPostResponse,
    ClassifyResponse,
    EmbeddedSlice,
    EmbedResponse,
    RerankResponse,
)
from embedline.client.runner import Threads

_MAX_CALLS = 512  # at a time; others wait
_NO_SECONDS = 0.001  # the least that a call may be given

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
        self._threads = Threads(_MAX_CALLS, name="embedline calls")
        self._close_threads = weakref.finalize(self, self._threads.close)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calls that are under way raise Cancelled."""
        self._client.close()
        self._close_threads()

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
        return await self._call(
            lambda own: self._client.embed(
                input,
                model,
                dimensions=dimensions,
                user=user,
                extra_body=extra_body,
                preference=own,
                progress=progress,
            ),
            preference,
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
                try:
                    await asyncio.to_thread(slices.close)  # aborts what is in flight, and waits for its end
                except RuntimeError:  # the system starts no thread
                    slices.close()

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
        return await self._call(
            lambda own: self._client.rerank(
                query,
                texts,
                model,
                raw_scores=raw_scores,
                truncate=truncate,
                truncation_direction=truncation_direction,
                preference=own,
                progress=progress,
            ),
            preference,
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
        return await self._call(
            lambda own: self._client.classify(
                inputs,
                model,
                raw_scores=raw_scores,
                truncate=truncate,
                truncation_direction=truncation_direction,
                preference=own,
                progress=progress,
            ),
            preference,
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
        return await self._call(
            lambda own: self._client.batch_post(url_path, payloads, method=method, preference=own, progress=progress),
            preference,
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

    async def _call(
        self, call: Callable[[RequestProcessingPreference], R], preference: RequestProcessingPreference | None
    ) -> R:
        """Its result. The wait for a thread is a part of the call's time."""
        called_at = time.monotonic()

        def begin() -> R:
            if own.total_timeout_s is None:
                return call(own)
            rest = own.total_timeout_s - (time.monotonic() - called_at)
            return call(replace(own, total_timeout_s=max(_NO_SECONDS, rest)))

        with self._cancellable(preference) as own:
            return await self._in_thread(begin, own)

    async def _in_thread(self, call: Callable[[], R], own: RequestProcessingPreference) -> R:
        """Its result. If the task is cancelled the call is too, and its end is waited for."""
        task, token = asyncio.current_task(), own.cancel_token
        assert task is not None
        assert token is not None
        running = self._threads.submit(call)
        answer = asyncio.wrap_future(running)
        answer.add_done_callback(_forget_error)
        drop = partial(_drop, running)
        token.watch(drop)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not task.cancelling():  # the caller's token, before the call had a thread
                raise Cancelled("the call was cancelled") from None
            token.cancel()
            while not answer.done():  # soon: its connections are closed
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([answer])
            raise
        finally:
            token.forget(drop)


def _drop(waiting: "Future[Any]") -> None:
    """It never begins, unless it has."""
    waiting.cancel()


def _forget_error(answer: "asyncio.Future[Any]") -> None:
    """If nobody asks for it, asyncio would complain."""
    if not answer.cancelled():
        answer.exception()
