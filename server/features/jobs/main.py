"""The jobs process: `python -P -m server.features.jobs.main <control fd> <supervisor pid>`. It alone owns the folder of
--jobs, unless its requests lie in Redis.

If it is killed, nothing that was accepted is lost: its successor opens the same store and goes on.
"""

import asyncio
import contextlib
import logging
import socket
import time
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from server.features.jobs.batches.batches import Batches, Expiry
from server.features.jobs.batches.state import Holder
from server.features.jobs.calls import Documents, Holdings, Requests, answering
from server.features.jobs.disk import Folder, opened
from server.features.jobs.files import Files, Objects
from server.features.jobs.gauges import BatchGauges, QueueGauges
from server.features.jobs.http_client import SelfClient
from server.features.jobs.messages import JobsStart
from server.features.jobs.pace import Pace
from server.features.jobs.runner import Housekeeping, Runner
from server.features.jobs.store.sqlite import open_sqlite
from server.features.jobs.store.store import Store, StoreLimits, StoreUnusable
from server.features.jobs.webhook_addresses import AddressRules
from server.features.jobs.webhooks import MAX_PARALLEL, Outbox, Secret, SecretFile, Sender
from server.features.rpc import Service
from server.settings.flag import SettingsError
from wire.child import Child, StartError, run
from wire.control import ControlRequest, Json

_STORE, _FILES = "requests", "files"  # the folders in --jobs
_WEBHOOK_SECONDS = 10.0  # of one attempt
_WEBHOOK_LEASE = 30.0  # seconds, after which an attempt that a kill cut short is made again
_WEBHOOK_STOP = 1.0  # seconds for the attempts that are on their way at a stop: a receiver that is well needs less

logger = logging.getLogger("embedline.server")


async def serve(child: Child, start: JobsStart) -> None:
    """The role. Raises StartError."""
    stopping = asyncio.create_task(child.stopping.wait())
    opening = asyncio.create_task(_opened(start))
    await asyncio.wait((stopping, opening), return_when=asyncio.FIRST_COMPLETED)
    if not opening.done():  # stopped while another server had the folder
        opening.cancel()
        return
    folder, store = opening.result()
    try:
        await _serve(child, start, folder, store)
    finally:
        await store.close()
        folder.close()


async def _serve(child: Child, start: JobsStart, folder: Folder, store: Store) -> None:
    requests = store.requests
    pace = Pace(start.max_in_flight)
    client = SelfClient(start.http_path, start.secret, pace)
    gauges = QueueGauges(requests, child.metrics, title=child.title)
    runner = Runner(
        requests,
        client,
        pace,
        most=start.max_in_flight,
        metrics=child.metrics,
        changed=gauges.changed,
    )
    addresses = AddressRules(allows_private=start.flags.jobs_private_webhooks)
    sender = Sender(addresses, max_connections=MAX_PARALLEL, timeout_s=_WEBHOOK_SECONDS)
    webhooks = Outbox(
        requests,
        sender,
        secrets=_secrets(start.flags.jobs_webhook_secrets),
        model_id="embedline",
        clock=time.time,
        counted=partial(child.metrics.count, "embedline_jobs_webhook_attempts_total"),
        changed=gauges.changed,
    )
    accepting = Requests(requests, addresses=addresses, metrics=child.metrics, changed=gauges.changed)
    is_shared = start.flags.jobs_redis is not None
    is_ready = bool((await child.request(ControlRequest.STATE))["ready"])  # so this process is started again
    objects = await asyncio.to_thread(_objects, start.flags.jobs_files, folder, checks=not is_ready)
    files = Files(folder.path / _FILES, store.documents, is_shared=is_shared, objects=objects)
    batch_gauges = BatchGauges(store.documents, child.metrics, title=child.title)
    holder = Holder(uuid.uuid4().hex, StoreLimits().claim_lease) if is_shared else None
    batches = Batches(files, store.documents, ask=client.ask, saved=batch_gauges.saved, holder=holder)
    await files.open()
    documents = Documents(files, batches, store.documents, time.time)
    holdings = Holdings(requests, files, batches)
    service = Service("jobs", answering(accepting, documents, holdings))
    housekeeping = Housekeeping(requests, runner.claimed_ids, metrics=child.metrics, changed=gauges.changed)
    expiry = Expiry(store.documents, ttl=start.flags.jobs_batch_ttl, clock=time.time)
    child.holds = lambda: {"running": runner.num_running}
    listener = socket.socket(fileno=start.listener_fd)
    await asyncio.to_thread(folder.note_socket, listener.getsockname())
    await service.start(listener)
    await _follow_state(child, runner, batches)
    child.ready()
    loops = (runner, housekeeping, gauges, webhooks, batches, expiry, batch_gauges, files.removal)
    async with _together(*(one.run() for one in loops)):
        await child.stopping.wait()
    await batches.release()
    await runner.stop()
    await webhooks.stop(_WEBHOOK_STOP)
    client.close()
    await sender.close()
    await service.stop()


def _objects(url: str | None, folder: Folder, *, checks: bool) -> Objects | None:
    """The object store of --jobs-files. Raises StartError.

    checks  whether one that is away is refused; later it only delays
    """
    try:
        objects = Objects(url) if url is not None else None
        if objects is not None and checks:
            objects.check()
        folder.check_files(url)  # a place that can't be used is not the folder's first
    except (SettingsError, StoreUnusable) as error:
        raise StartError(str(error)) from None
    return objects


def _secrets(path: str | None) -> Callable[[], list[Secret]]:
    """The secrets that webhooks are signed with now. Raises StartError."""
    if path is None:
        return list
    try:
        return SecretFile(path).secrets
    except SettingsError as error:
        raise StartError(str(error)) from None


async def _follow_state(child: Child, runner: Runner, batches: Batches) -> None:
    """New requests and batches are begun while the server is ready: not while it starts or stops."""

    def changed(newest: Json) -> None:
        batches.begin_more(bool(newest["ready"]))
        if newest["ready"]:
            runner.may_claim.set()
        else:
            runner.may_claim.clear()

    child.on_state = changed
    changed(await child.request(ControlRequest.STATE))


@contextlib.asynccontextmanager
async def _together(*loops: Coroutine[Any, Any, None]) -> Any:
    """Runs these while the block runs. If one fails, this process ends with it."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in loops]
        yield
        for task in tasks:
            task.cancel()


async def _opened(start: JobsStart) -> tuple[Folder, Store]:
    """The folder of --jobs and the store. Raises StartError."""
    flags = start.flags
    assert flags.jobs is not None
    try:
        folder = await opened(flags.jobs, waits=start.waits_for_folder, is_shared=flags.jobs_redis is not None)
        limits = StoreLimits(
            quota_bytes=flags.jobs_quota,
            key_share=flags.jobs_key_share,
            result_ttl=flags.jobs_result_ttl,
            delivery_lease=_WEBHOOK_LEASE,
        )
        if flags.jobs_redis is None:
            return folder, await open_sqlite(folder.path / _STORE, limits)
        from server.features.jobs.store.redis import open_redis  # its library is an extra

        return folder, await open_redis(flags.jobs_redis, limits, folder_id=folder.shared_id())
    except (SettingsError, StoreUnusable) as error:
        raise StartError(str(error)) from None


if __name__ == "__main__":
    run(serve, JobsStart)
