"""The end of a process, its forks, and the threads of clients."""

import subprocess
import sys
import threading

from embedline.client.runner import ThreadPool
from tests.embedline.client.stub import raw, stub
from tests.server_e2e.running import PATIENCE

END = """
import sys, threading
from embedline import Client, RequestProcessingPreference
client = Client(sys.argv[1], preference=RequestProcessingPreference(batch_size=1))
threading.Thread(target=client.embed, args=(["text 1", "text 2"],), daemon=True).start()
sys.stdin.read()
"""

FORK = """
import os, sys
from embedline import Client
used, unused = Client(sys.argv[1]), Client(sys.argv[1])
used.embed("text 1")
child = os.fork()
if child == 0:
    unused.embed("text 2")
    try:
        used.embed("text 3")
    except RuntimeError as error:
        used.close()
        os._exit(5 if "forked" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
used.embed("text 4")
"""


def test_an_interpreter_that_ends_waits_for_no_server() -> None:
    never = threading.Event()
    with stub(lambda _: [never]) as server:
        process = subprocess.Popen([sys.executable, "-c", END, server.url], stdin=subprocess.PIPE)
        server.wait_until(lambda: len(server.seen) == 2)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        never.set()


def test_a_used_client_is_refused_after_a_fork_and_a_new_one_works() -> None:
    """Both processes would read each other's answers from the same connections."""
    with stub(lambda seen: [raw(seen.texts)]) as server:
        done = subprocess.run(
            [sys.executable, "-c", FORK, server.url], timeout=PATIENCE, check=False, capture_output=True
        )
    assert done.returncode == 0, done.stderr
    assert [seen.texts for seen in server.seen] == [["text 1"], ["text 2"], ["text 4"]]


def test_no_more_threads_than_allowed_and_none_after_the_end() -> None:
    threads, end = ThreadPool(3, name="threads of the test"), threading.Event()
    before = set(threading.enumerate())
    works = [threads.submit(end.wait) for _ in range(5)]
    started = set(threading.enumerate()) - before
    assert len(started) == 3
    assert works[4].cancel()
    end.set()
    threads.close()
    assert [work.result() for work in works[:4]] == [True] * 4
    for thread in started:
        thread.join(PATIENCE)
        assert not thread.is_alive()
