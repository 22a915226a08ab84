"""The jobs process: `python -P -m server.features.jobs.main <control fd> <supervisor pid>`. It alone owns the folder of
--jobs, unless its requests lie in Redis.

If it is killed, nothing that was accepted is lost: its successor opens the same store and goes on.
"""

import asyncio
import logging
import socket
import time
import uuid
from functools import partial

from server.features.jobs.batches.batches import Batches
from server.features.jobs.batches.state import Holder
from server.features.jobs.calls import Calls, answering
from server.features.jobs.disk import Folder, opened
from server.features.jobs.feature import JobsStart
from server.features.jobs.files import Files, Objects
from server.features.jobs.gauges import Gauges
from server.features.jobs.http_client import SelfClient
from server.features.jobs.pace import Pace
from server.features.jobs.runner import Runner
from server.features.jobs.store.sqlite import open_sqlite
from server.features.jobs.store.store import Store, StoreLimits, StoreUnusable
from server.features.jobs.webhook_addresses import AddressRules
from server.features.jobs.webhooks import MAX_PARALLEL, Outbox, SecretFile, Sender
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
    try:
        folder, store = opening.result()
        try:
            await _serve(child, start, folder, store)
        finally:
            await store.close()
            folder.close()
    except (SettingsError, StoreUnusable) as error:
        raise StartError(str(error)) from None


async def _serve(child: Child, start: JobsStart, folder: Folder, store: Store) -> None:
    flags, requests, pace = start.flags, store.requests, Pace(start.max_in_flight)
    client = SelfClient(start.http_path, start.secret, pace)
    gauges = Gauges(store, child.metrics, title=child.title)
    runner = Runner(requests, client, pace, most=start.max_in_flight, metrics=child.metrics, changed=gauges.changed)
    addresses = AddressRules(allows_private=flags.jobs_private_webhooks)
    sender = Sender(addresses, max_connections=MAX_PARALLEL, timeout_s=_WEBHOOK_SECONDS)
    webhooks = Outbox(
        requests,
        sender,
        secrets=SecretFile(flags.jobs_webhook_secrets).secrets if flags.jobs_webhook_secrets is not None else list,
        clock=time.time,
        counted=partial(child.metrics.count, "embedline_jobs_webhook_attempts_total"),
        changed=gauges.changed,
    )
    is_shared = flags.jobs_redis is not None
    is_ready = bool((await child.request(ControlRequest.STATE))["ready"])  # so this process is started again
    objects = await asyncio.to_thread(_objects, flags.jobs_files, folder, checks=not is_ready)
    files = Files(folder.path / _FILES, store.documents, is_shared=is_shared, objects=objects)
    holder = Holder(uuid.uuid4().hex, StoreLimits().claim_lease) if is_shared else None
    batches = Batches(files, store.documents, ask=client.ask, saved=gauges.saved, holder=holder)
    await files.open()
    calls = Calls(
        store, files, batches, addresses=addresses, metrics=child.metrics, changed=gauges.changed, clock=time.time
    )
    service = Service("jobs", answering(calls))
    child.holds = lambda: {"running": runner.num_running}
    listener = socket.socket(fileno=start.listener_fd)
    await asyncio.to_thread(folder.note_socket, listener.getsockname())
    await service.start(listener)
    await _follow_state(child, runner, batches)
    child.ready()
    loops = [one.run() for one in (runner, gauges, webhooks, batches, files)]
    loops += [runner.keep_house(), batches.forget_old(flags.jobs_batch_ttl)]
    async with asyncio.TaskGroup() as group:  # if one fails, this process ends with it
        tasks = [group.create_task(loop) for loop in loops]
        await child.stopping.wait()
        for task in tasks:
            task.cancel()
    await batches.release()
    await runner.stop()
    await webhooks.stop(_WEBHOOK_STOP)
    client.close()
    await sender.close()
    await service.stop()


def _objects(url: str | None, folder: Folder, *, checks: bool) -> Objects | None:
    """The object store of --jobs-files. Raises SettingsError, StoreUnusable.

    checks  whether one that is away is refused; later it only delays
    """
    objects = Objects(url) if url is not None else None
    if objects is not None and checks:
        objects.check()
    folder.check_files(url)  # a place that can't be used is not the folder's first
    return objects


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


async def _opened(start: JobsStart) -> tuple[Folder, Store]:
    """The folder of --jobs and the store. Raises SettingsError, StoreUnusable."""
    flags = start.flags
    assert flags.jobs is not None
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


if __name__ == "__main__":
    run(serve, JobsStart)
