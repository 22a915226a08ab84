"""A server with nothing but its own files and loopback: read-only root, no network, no privileges, `python -O`."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import PATIENCE, ROOT

pytestmark = [pytest.mark.full]

# In namespaces of their own: loopback is up, all file systems but one folder are read-only.
CONFINE = 'ip link set lo up && mount --bind "$1" "$1" && mount -o remount,bind,ro / && shift && exec "$@"'
SCRIPT = """
import subprocess, sys, time, urllib.request
from urllib.error import HTTPError, URLError
flags = ["--port", "8080", "--prometheus-port", "0", *sys.argv[1:]]
serve = [sys.executable, "-O", "-P", "-m", "embedline", "serve", *flags]
with subprocess.Popen(serve) as server:
    while True:
        try:
            assert urllib.request.urlopen("http://127.0.0.1:8080/readyz").status == 200
            break
        except (HTTPError, URLError):
            assert server.poll() is None
            time.sleep(0.05)
    body = b'{"input": ["one", "two"], "model": "any"}'
    asked = urllib.request.Request("http://127.0.0.1:8080/v1/embeddings", body, {"content-type": "application/json"})
    assert urllib.request.urlopen(asked).read().count(b'"embedding"') >= 2
    assert b"embedline_ready 1.0" in urllib.request.urlopen("http://127.0.0.1:8080/metrics").read()
    server.terminate()
    assert server.wait(300) == 0
try:
    open("/written", "w")
except OSError:
    print("confined")
"""


def confined(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EMBEDLINE_DRAIN_DELAY": "0", "EMBEDLINE_DEVICES": "cpu"}
    own = {"TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder), "XDG_CACHE_HOME": str(folder), "HOME": str(folder)}
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", CONFINE, "sh", str(folder), *command],
        env=environment | own,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * PATIENCE,
    )


@pytest.mark.holds("Containers")
def test_a_server_without_rights_network_and_a_disk_to_write_to() -> None:
    with tempfile.TemporaryDirectory() as name:  # sockets' paths are short
        folder = Path(name)
        if not all(map(shutil.which, ("unshare", "ip", "mount"))) or confined(folder, "true").returncode != 0:
            pytest.skip("no namespaces may be made here")
        done = confined(folder, "setpriv", "--no-new-privs", "--bounding-set=-all", sys.executable, "-c", SCRIPT, *FAKE)
    assert (done.returncode, done.stdout[-9:]) == (0, "confined\n"), done.stdout + done.stderr
