"""What the commands of `embedline` print: of the machine, of models, and of themselves."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.server_e2e.expected import minilm
from tests.server_e2e.running import ROOT
from tests.structure.snapshot.models import MODELS, SHAPES

_PATIENCE = 600.0  # seconds, beside others on a busy machine
_DIGITS = 6  # of a figure that is computed, behind the point
_OUR_ENGINES = ("fused", "openvino", "static", "tensorrt-llm", "transformers")
# commands that end in one line; the folder of models stands where {} does
_WRONG = (
    "nonsense",
    "serve --nonsense",
    "serve --port nonsense",
    "serve --engine nonsense",
    "serve --model-id {}/nonsense",
    "serve --model-id {}/classifier --task embed-nothing",
    "serve --model-id {}/classifier --quantization fp8",
    "serve --model-id {}/embedding --model-id {}/embedding",
    "serve --ssl-keyfile nonsense",
    "serve --pipelines nonsense",
    "inspect",
    "inspect {}/nonsense",
    "inspect {}/embedding --task rerank",
    "verify {}/nonsense",
    "convert {}/embedding {}/embedding",
    "quantize {}/embedding {}/embedding",
    "compile {}/nonsense --out {}/out",
    "health http://127.0.0.1:1",
    "backfill",
    "backfill {}/nonsense.jsonl {}/rows",
    "bench",
    "bench http://127.0.0.1:1 --requests 0",
    "jobs held http://127.0.0.1:1",
    "ray nonsense",
    "ray manifest --nonsense",
)


class Printed(NamedTuple):
    """What a command left."""

    code: int
    out: str
    log: str


class Commands:
    """Runs commands, two at a time, in a folder of their own."""

    def __init__(self, models: Path, work: Path) -> None:
        self._models = models
        self._work = work
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("EMBEDLINE_", "HF_"))},
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(work / "cache"),
            "COLUMNS": "200",
            "DTYPE": "float32",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "EMBEDLINE_DEVICES": "cpu",
        }

    def run(self, arguments: Sequence[str]) -> Printed:
        command = [sys.executable, "-P", "-m", "embedline", *arguments]
        options: dict[str, Any] = {"env": self._environment, "cwd": self._work, "stdin": subprocess.DEVNULL}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False, **options)
        return Printed(ended.returncode, self.plain(ended.stdout), self.plain(ended.stderr))

    def plain(self, text: str) -> str:
        """Without what differs from one run to the next."""
        for place, name in (
            (self._models, "<models>"),
            (self._work, "<work>"),
            (minilm().parents[1], "<packages>"),
            (Path(sys.executable).parent, "<bin>"),
            (ROOT, "<tree>"),
        ):
            text = text.replace(str(place), name)
        text = re.sub(r"[\d,]+ MiB free", "N MiB free", text)
        return re.sub(r"^\d{4}-\d\d-\d\d [\d:,]+ ", "", text, flags=re.MULTILINE)

    def files(self) -> Iterator[tuple[str, str]]:
        """Names of files of the snapshot, and what is in them."""
        asked = self._asked()
        with ThreadPoolExecutor(2) as pool:
            all_printed = pool.map(self.run, [arguments for _, arguments in asked])
            for (name, _), printed in zip(asked, all_printed, strict=True):
                text = _rounded(printed.out) if name.startswith("verify") else printed.out
                yield f"commands/{name}", f"exit code {printed.code}\n{text}\n--- standard error ---\n{printed.log}"
        yield from self._help()

    def _asked(self) -> list[tuple[str, list[str]]]:
        computed = {"minilm": str(minilm()), **{name: str(self._models / name) for name in MODELS}}
        inspected = {**computed, **{f"shape-{name}": str(self._models / f"shape-{name}") for name in SHAPES}}
        wrong = [
            (f"wrong/{line.replace('{}/', '').replace('/', '_')}", line.replace("{}", str(self._models)).split())
            for line in _WRONG
        ]
        return [
            *((f"verify/{name}", ["verify", "--json", path]) for name, path in computed.items() if name != "minilm"),
            *((f"doctor/{name}", ["doctor", "--model-id", path]) for name, path in computed.items()),
            *((f"doctor/{name}.json", ["doctor", "--json", "--model-id", path]) for name, path in computed.items()),
            *(
                (f"doctor/minilm {engine}", ["doctor", "--model-id", str(minilm()), "--engine", engine])
                for engine in _OUR_ENGINES
            ),
            ("doctor/minilm int8", ["doctor", "--model-id", str(minilm()), "--quantization", "int8"]),
            ("doctor/minilm fp8", ["doctor", "--model-id", str(minilm()), "--quantization", "fp8"]),
            *((f"inspect/{name}", ["inspect", path]) for name, path in computed.items()),
            *((f"inspect/{name}.json", ["inspect", "--json", path]) for name, path in inspected.items()),
            *wrong,
        ]

    def _help(self) -> Iterator[tuple[str, str]]:
        """Of each command that help lists, and of the commands in it: the words of each option, as a set."""
        waiting: list[list[str]] = [[]]
        while waiting:
            arguments = waiting.pop()
            text = self.run([*arguments, "--help"]).out
            yield f"help/{' '.join(['embedline', *arguments])}", "\n".join(sorted(set(entries(text))))
            _, _, listed = text.partition("\nCommands:\n")
            waiting += [[*arguments, name] for name in re.findall(r"^  (\S+)", listed, re.MULTILINE)]


def entries(text: str) -> Iterator[str]:
    """The options, commands and paragraphs of a help page, each in one line however it was wrapped."""
    entry: list[str] = []
    for line in [*text.splitlines(), ""]:
        begins = not line.strip() or re.match(r" {0,2}\S", line)
        if begins and entry:
            yield re.sub(r"(?<=\w-) ", "", " ".join(" ".join(entry).split()))
            entry = []
        entry.append(line)


def _rounded(text: str) -> str:
    """JSON whose fractions have a few digits: the last ones are the threads'. What is no JSON stays."""
    try:
        return json.dumps(_few_digits(json.loads(text)), indent=1)
    except ValueError:
        return text


def _few_digits(value: Any) -> Any:
    match value:
        case dict():
            return {name: _few_digits(inside) for name, inside in value.items()}
        case list():
            return [_few_digits(inside) for inside in value]
        case float():
            return round(value, _DIGITS)
    return value
