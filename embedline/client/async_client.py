"""`AsyncClient`: the same client for asyncio. Each call runs in a thread; cancelling the task aborts its requests."""

import asyncio
import contextlib
import ssl
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from embedline.client.client import Client
from embedline.client.errors import Cancelled
from embedline.client.preference import CancellationToken, RequestProcessingPreference
from embedline.client.runner import ThreadPool

_MAX_CALLS = 512  # at a time; others wait
_NO_SECONDS = 0.001  # the least that a call may be given

P = ParamSpec("P")
R = TypeVar("R")


def in_a_thread(
    call: Callable[Concatenate[Client, P], R],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, R]]:
    """The call of a Client as one to await, with the same arguments. The wait for a thread is a part of its time."""

    @wraps(call)
    async def awaited(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> R:
        called_at = time.monotonic()

        def begin() -> R:
            rest = own.total_timeout_s
            if rest is not None:
                rest = max(_NO_SECONDS, rest - (time.monotonic() - called_at))
            kwargs["preference"] = replace(own, total_timeout_s=rest)
            return call(self._client, *args, **kwargs)

        with self._cancellable(kwargs) as own:
            return await self._in_thread(begin, own)

    return awaited


def each_in_a_thread(
    call: Callable[Concatenate[Client, P], Generator[R, None, None]],
) -> Callable[Concatenate["AsyncClient", P], AsyncGenerator[R, None]]:
    """Run a call in a thread whose results come one by one."""

    @wraps(call)
    async def each_awaited(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        with self._cancellable(kwargs) as own:
            kwargs["preference"] = own
            results = call(self._client, *args, **kwargs)
            try:
                while (result := await self._in_thread(lambda: next(results, None), own)) is not None:
                    yield result
            finally:
                try:
                    await asyncio.to_thread(results.close)  # aborts what is in flight, and waits for its end
                except RuntimeError:  # the system starts no thread
                    results.close()

    return each_awaited


class AsyncClient:
    """`Client` for asyncio, with the same arguments and errors. Iterators given as inputs are read in a thread."""

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
        self._threads = ThreadPool(_MAX_CALLS, name="embedline calls")
        self._close_threads = weakref.finalize(self, self._threads.close)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *ended: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calls that are under way raise Cancelled."""
        self._client.close()
        self._close_threads()

    embed = in_a_thread(Client.embed)
    embed_query = in_a_thread(Client.embed_query)
    embed_documents = in_a_thread(Client.embed_documents)
    iter_embed = each_in_a_thread(Client.iter_embed)
    rerank = in_a_thread(Client.rerank)
    classify = in_a_thread(Client.classify)
    batch_post = in_a_thread(Client.batch_post)

    @contextmanager
    def _cancellable(self, arguments: Mapping[str, Any]) -> Iterator[RequestProcessingPreference]:
        """The call's preference with a token of its own, which the caller's token cancels too."""
        chosen: RequestProcessingPreference = arguments.get("preference") or self._client.preference
        given, token = chosen.cancel_token, CancellationToken()
        if given is not None:
            given.watch(token.cancel)
        try:
            yield replace(chosen, cancel_token=token)
        finally:
            if given is not None:
                given.forget(token.cancel)

    async def _in_thread(self, call: Callable[[], R], own: RequestProcessingPreference) -> R:
        """The call's result. If the task is cancelled the call is too, and its end is waited for."""
        task, token = asyncio.current_task(), own.cancel_token
        assert task is not None
        assert token is not None
        running = self._threads.submit(call)
        answer = asyncio.wrap_future(running)
        answer.add_done_callback(_forget_error)
        token.watch(running.cancel)  # it never begins, unless it has
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
            token.forget(running.cancel)


def _forget_error(answer: "asyncio.Future[Any]") -> None:
    """Take the error: if nobody asked for it, asyncio would complain."""
    if not answer.cancelled():
        answer.exception()
