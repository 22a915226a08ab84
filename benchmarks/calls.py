"""The Python calls and lines that run in each process of a warm server for one text alone, with the fake engine.

    python -m benchmarks.calls [--root CHECKOUT] [--lines MODULE] [FLAG …]

What runs before the next text counts, so also what a process does after the answer; lower quartiles over TEXTS texts,
so that heartbeats, which come twice a second, do not. With --lines the lines of one process (such as
server.frontend.main) are printed in the order in which they ran, those of the text that is the lower quartile. Further
flags are the server's.
"""

import argparse
import http.client
import json
import os
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from linecache import getline
from pathlib import Path

from benchmarks.measuring.servers import ROOT, ROUTE, embedline, running

TEXT = "the quick brown fox jumps over the lazy dog and then runs far away from us again today"
TEXTS = 21
_PAUSE_SECONDS = 0.15  # after an answer: what is left to do, as the line of the log, is done then
_HOOK = Path(__file__).parent / "measuring/counting"


@dataclass(frozen=True, slots=True)
class Event:
    """One call or line."""

    at: int  # time.monotonic_ns()
    kind: str
    path: str
    line: int


def ask(port: int) -> list[int]:
    """When each text was sent, and one moment after the last; on one connection, one after the other."""
    connection, began = http.client.HTTPConnection("127.0.0.1", port), list[int]()
    for number in range(TEXTS):
        body = json.dumps({"input": f"{number} {TEXT}", "model": "m", "encoding_format": "base64"})
        began.append(time.monotonic_ns())
        connection.request("POST", ROUTE, body, {"content-type": "application/json"})
        connection.getresponse().read()
        time.sleep(_PAUSE_SECONDS)
    return [*began, time.monotonic_ns()]


def counted(root: Path, flags: list[str]) -> dict[str, list[Event]]:
    """The events of the text at the lower quartile, by the module of the process."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as folder:
        recipe = embedline("--engine", "fake", *flags, root=root)
        environment = {"PYTHONPATH": os.pathsep.join((str(_HOOK), str(root))), "COUNTED_TO": folder}
        recipe = replace(recipe, environment=recipe.environment | environment, folder=root)
        switch = Path(folder, "on")
        with running(recipe, cache=Path(cache)) as server:
            server.wait_for_answer(TEXT)
            ask(server.port)  # warms up
            switch.touch()
            time.sleep(0.5)
            began = ask(server.port)
            switch.unlink()
            time.sleep(3)
        return {path.name.rpartition("-")[0]: quartile_of(path, began) for path in sorted(Path(folder).iterdir())}


def quartile_of(path: Path, began: list[int]) -> list[Event]:
    """The events of the text with the lower quartile of their numbers, of those in this file."""
    of_texts: defaultdict[int, list[Event]] = defaultdict(list)
    for at, kind, source, line in (row.split() for row in path.read_text().splitlines()):
        if began[0] <= int(at) < began[-1]:
            of_texts[sum(int(at) >= moment for moment in began)].append(Event(int(at), kind, source, int(line)))
    each = sorted((of_texts[number] for number in range(1, TEXTS + 1)), key=len)
    return each[TEXTS // 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, metavar="CHECKOUT", help="a folder with the source")
    parser.add_argument("--lines", metavar="MODULE", help="print the lines of this process")
    arguments, flags = parser.parse_known_args()
    found = counted(arguments.root.resolve(), flags)
    print(f"{'process':<24} calls  lines")
    for module, events in found.items():
        calls = sum(event.kind == "call" for event in events)
        print(f"{module:<24} {calls:5}  {len(events) - calls:5}")
    for event in found.get(arguments.lines, []):
        place = f"{Path(event.path).name}:{event.line}"
        if event.kind == "line":
            print(f"{event.at % 10**9 / 1000:10.0f} {place:<28} {getline(event.path, event.line).rstrip()}")
        else:
            print(f"           {place:<28} >>> {getline(event.path, event.line).strip()}")


if __name__ == "__main__":
    main()
