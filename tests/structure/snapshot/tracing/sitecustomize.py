"""Python imports this before anything else where its folder is on PYTHONPATH: it notes which files run.

TRACED are folders, whose files are noted. TRACED_TO is a folder, where each process writes a file named after its
module and its number: a line for each file of which a line ran, with what the one byte of the file TRACED_WINDOW was
then.
"""

import mmap
import os
import sys
import threading
from types import FrameType
from typing import Any


def _start() -> None:
    with open(os.environ["TRACED_WINDOW"], "rb") as file:
        window = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
    words = sys.orig_argv
    module = words[words.index("-m") + 1] if "-m" in words else "none"
    path = os.path.join(os.environ["TRACED_TO"], f"{module}-{os.getpid()}")
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    folders = tuple(folder + os.sep for folder in os.environ["TRACED"].split(","))
    ours: dict[str, bool] = {}
    seen: set[tuple[int, str]] = set()

    def of_line(frame: FrameType, event: str, argument: object) -> Any:
        at = (window[0], frame.f_code.co_filename)
        if event == "line" and at not in seen:
            seen.add(at)
            os.write(out, f"{at[0]} {at[1]}\n".encode())
        return of_line

    def of_call(frame: FrameType, event: str, argument: object) -> Any:
        path = frame.f_code.co_filename
        if path not in ours:
            ours[path] = path.startswith(folders)
        return of_line if ours[path] else None

    threading.settrace(of_call)
    sys.settrace(of_call)


if "TRACED_TO" in os.environ:
    _start()
