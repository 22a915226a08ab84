"""Which of our files one text passes, and which a frontend imports: a server with the fake engine is traced.

Each process of it traces itself (tracing/sitecustomize.py); the product has no part in that.
"""

import mmap
import os
from collections import Counter, defaultdict
from pathlib import Path

from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import serving
from tests.structure.sources import PACKAGES, ROOT

FRONTEND = "server.frontend.main"
PROCESSES = (FRONTEND, "tokenizer_pool.worker", "batch_manager.worker", "engine.worker")
# one process for each step, so that no step is spared
FLAGS = (*FAKE, "--frontends", "1", "--tokenization-workers", "1", "--batch-managers", "1")
_KEY = "the-key-of-a-test"
_BODY = {"input": "one text", "model": "any"}
_NUM_WARM, _NUM_COUNTED = 2, 9  # requests: the first ones fill caches

Ran = dict[str, dict[int, set[str]]]  # for each module that is a process: the files that ran during each request


def on_the_way(ran: Ran) -> list[str]:
    """The files that ran, in any process that a text passes, during most of the counted requests: a heartbeat, which
    has files of its own, may meet one of them."""
    found: set[str] = set()
    for process in PROCESSES:
        counted = (files for number, files in ran[process].items() if number > _NUM_WARM)
        times = Counter(file for files in counted for file in files)
        found |= {file for file, number in times.items() if number > _NUM_COUNTED // 2}
    return sorted(found)


def imported(ran: Ran, process: str) -> list[str]:
    """The files of ours that a process has imported, less those that only make a folder a package."""
    return sorted({file for files in ran[process].values() for file in files if not file.endswith("__init__.py")})


def trace(folder: Path) -> Ran:
    """Starts a server, and sends it `POST /v1/embeddings` in JSON with an API key, each on a connection of its own."""
    (folder / "window").write_bytes(b"\0")
    traced = folder / "traced"
    traced.mkdir()
    environment = {
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent / "snapshot/tracing"), str(ROOT))),
        "TRACED_TO": str(traced),
        "TRACED_WINDOW": str(folder / "window"),
        "TRACED": ",".join(str(ROOT / package) for package in PACKAGES),
        "API_KEY": _KEY,
    }
    read, write = os.pipe()
    with (
        open(read) as request_log,
        (folder / "window").open("r+b") as file,
        mmap.mmap(file.fileno(), 1) as window,
        serving(*FLAGS, folder=folder, environment=environment, stdout=write) as server,
    ):
        os.close(write)
        for number in range(1, _NUM_WARM + _NUM_COUNTED + 1):
            window[0] = number
            reply = server.request("POST", "/v1/embeddings", _BODY, authorization=f"Bearer {_KEY}")
            assert reply.status == 200, reply.body
            request_log.readline()  # its last trace
            window[0] = 0
    ran: Ran = defaultdict(lambda: defaultdict(set))
    for log in traced.iterdir():
        for line in log.read_text().splitlines():
            number_then, path = line.split(" ", 1)
            ran[log.name.rpartition("-")[0]][int(number_then)].add(str(Path(path).relative_to(ROOT)))
    return ran
