"""Prints the index to take torch from: the one of CPU builds, if there is no NVIDIA driver here and that index answers.

Prints nothing otherwise, which means pip's default index: its builds for Linux bring several GB of CUDA libraries.
Runs before anything is installed, so it needs nothing but Python.
"""

import ctypes
import shutil
import ssl
import sys
import threading
import urllib.request

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SECONDS = 2


def main() -> None:
    if has_driver():
        return
    if not answers(f"{CPU_INDEX}/torch/"):
        say("pip's default index, with CUDA libraries: the index of CPU builds does not answer")
        return
    say(f"{CPU_INDEX}, since there is no NVIDIA driver here")
    print(CPU_INDEX)


def has_driver() -> bool:
    """Whether this machine has an NVIDIA driver, even one that sees no GPU at the moment."""
    if shutil.which("nvidia-smi"):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def answers(url: str) -> bool:
    """Whether anybody answers at this address in time. A thread asks, since looking up a name can take longer."""
    answered: list[bool] = []
    thread = threading.Thread(target=lambda: answered.append(responds(url)), daemon=True)
    thread.start()
    thread.join(SECONDS)
    return answered == [True]


def responds(url: str) -> bool:
    """Whether this address answers a request. Who it is, pip checks when it downloads from there."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=SECONDS, context=context):
            return True
    except (OSError, ValueError):  # ValueError: the proxy's address is not one
        return False


def say(source: str) -> None:
    print(f"torch comes from {source} (TORCH_INDEX= says otherwise)", file=sys.stderr)


if __name__ == "__main__":
    main()
