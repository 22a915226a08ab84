"""What must stay equal while code moves, as files, and the comparison of two such folders.

`python -m tests.structure.snapshot take FOLDER` writes what this checkout answers: the commands about machine and
models, the OpenAPI document, the answers to bad requests of every route, help, metrics, and what each process imports.
`python -m tests.structure.snapshot compare OLD NEW` prints what differs, file by file: exit code 1 if anything does.
"""

import argparse
import contextlib
import difflib
import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.server_e2e import running
from tests.server_e2e.expected import FAKE, minilm
from tests.server_e2e.running import ADDRESS, CACHE_HOME, Server, serving
from tests.structure.snapshot import bad_requests, models, roles
from tests.structure.snapshot.bad_requests import Asked, Asker
from tests.structure.snapshot.commands import Commands

NOT_COMPARED = "not-compared"
_SHOWN = 30  # lines of a file that differs
_KEY = "the-key-of-a-snapshot"
_ONE_EACH = ("--frontends", "1", "--tokenization-workers", "1", "--batch-managers", "1")
_PIPELINES = """
from embedline.pipelines import pipeline, step

@step
async def upper(text: str) -> str:
    return text.upper()

@pipeline
def shout(text: str) -> str:
    return upper(text)
"""
# what an engine does that is started again, and times
_CHANGING = re.compile(r'(no engine is ready \(|"unix":|"age_seconds":)(?:(?<=\()[^)]*|[\d.]+)')
_OF_A_MINUTE = re.compile(r"(retry-after: |-tokens: )\d.*")
_SERVED = ("embedding", "reranker", "classifier", "token_classifier", "splade", "many_outputs", "late_interaction")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.structure.snapshot", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("take").add_argument("folder", type=Path)
    compare = commands.add_parser("compare")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "take":
        take(arguments.folder)
    else:
        sys.exit(differences(arguments.old, arguments.new))


def take(out: Path) -> None:
    """Write a snapshot into a folder, which must be new or empty."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        sys.exit(f"{out} is not empty")
    running.PATIENCE = 600.0  # many engines start at once, maybe beside others
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        fixtures = work / "models"
        fixtures.mkdir()
        models.make(fixtures)
        for part in (
            Commands(fixtures, work).files(),
            of_fake_server(work),
            of_server_with_keys(work),
            of_servers_in_trouble(work),
            of_real_server(work, fixtures),
        ):
            for path, text in part:
                file = out / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)


@contextlib.contextmanager
def _served(work: Path, name: str, *flags: str, **environment: str) -> Iterator[tuple[Server, dict[str, roles.Role]]]:
    """A server, and what its processes had imported when it was ready."""
    folder, asks = work / name, work / f"{name}-modules"
    folder.mkdir()
    asks.mkdir()
    both = {**roles.environment(asks), CACHE_HOME: str(work / "cache"), **environment}
    with serving(*_ONE_EACH, *flags, folder=folder, environment=both) as server:
        yield server, roles.roles(server, asks)


def of_fake_server(work: Path) -> Iterator[tuple[str, str]]:
    """Every route, with the jobs, pipelines and gRPC beside it."""
    (work / "pipelines.py").write_text(_PIPELINES)
    more = ("--jobs", str(work / "jobs"), "--pipelines", str(work / "pipelines.py"), "--grpc-port", "0")
    with _served(work, "fake", *FAKE, *more, "--payload-limit", "200000") as (server, found):
        document = server.request("GET", "/openapi.json").json()
        yield "openapi.json", _json(document)
        yield from _errors("fake", server, document)
        yield "errors/fake/raw", "".join(bad_requests.raw_answers(server))
        yield "metrics", metrics_of(server.request("GET", "/metrics").body.decode())
    yield from _of_roles("fake", found)


def of_server_with_keys(work: Path) -> Iterator[tuple[str, str]]:
    """Without a key, and where jobs and pipelines are not there."""
    flags = (*FAKE, "--metrics-auth", "--strict-model-name", "--allowed-hosts", "localhost")
    with _served(work, "keys", *flags, API_KEY=_KEY) as (server, found):
        document = server.request("GET", "/openapi.json", authorization=f"Bearer {_KEY}").json()
        yield "openapi-with-keys.json", _json(document)
        asker = Asker(server)
        lines = defaultdict(list)
        for operation in bad_requests.operations(document):
            for asked in list(bad_requests.of_operation(operation))[: 1 + len(bad_requests.HEADERS)]:
                lines[operation.path].append(asker.answer(asked))
                keyed = asked._replace(headers={"authorization": f"Bearer {_KEY}", **asked.headers})
                lines[operation.path].append(asker.answer(keyed))
        asker.close()
        for path, answers in lines.items():
            yield f"errors/keys/{_file(path)}", "".join(answers)
    yield from _of_roles("keys", found)


def of_servers_in_trouble(work: Path) -> Iterator[tuple[str, str]]:
    """An engine that is never ready, one that is too slow, and a key that has used up its minute."""
    folder = work / "never ready"
    folder.mkdir()
    with contextlib.closing(Server(*FAKE, *_ONE_EACH, "--fake-fault", "exit@load", folder=folder)) as server:
        server.port = int(server.log.wait_for(ADDRESS)[0][1])
        document = server.request("GET", "/openapi.json").json()
        yield "errors/never-ready", "".join(_of_examples(server, document))

    with _served(work, "slow", *FAKE, "--fake-cost-ms", "300") as (server, _):
        answers = _of_examples(server, document, headers={"request_timeout_ms": "100"}, waits=True)
        yield "errors/too-slow", "".join(answers)

    (work / "keys.txt").write_text(f"one:{_KEY} tokens-per-minute=20\n")
    with _served(work, "used up", *FAKE, "--api-key-file", str(work / "keys.txt")) as (server, _):
        answers = _of_examples(server, document, headers={"authorization": f"Bearer {_KEY}"})
        yield "errors/used-up", "".join(_OF_A_MINUTE.sub(r"\1SOME", answer) for answer in answers)


def _of_examples(
    server: Server,
    document: dict[str, Any],
    *,
    headers: Mapping[str, str] = MappingProxyType({}),
    waits: bool = False,
    **fields: str,
) -> Iterator[str]:
    """The answer to each operation's example, with these fields in its place. `waits`: until the engine is idle."""
    asker = Asker(server)
    for operation in bad_requests.operations(document):
        if waits:
            assert server.embed("a text").status == 200
        body = {**operation.example, **fields} if isinstance(operation.example, dict) else operation.example
        asked = Asked("its example", operation.method, operation.path, bad_requests.as_json(body), dict(headers))
        yield _CHANGING.sub(r"\1SOME", asker.answer(asked))
    asker.close()


def of_real_server(work: Path, fixtures: Path) -> Iterator[tuple[str, str]]:
    """Models of every task by the engines that compute: what each route says to each of them."""
    tables = [("minilm", minilm(), "openvino"), ("static", fixtures / "static", "static")]
    tables += [(name, fixtures / name, "transformers") for name in _SERVED]
    config = work / "models.toml"
    config.write_text(
        "".join(
            f'[[model]]\nmodel-id = "{path}"\nserved-model-name = "{name}"\nengine = "{engine}"\n\n'
            for name, path, engine in tables
        )
    )
    with _served(work, "real", "--config", str(config)) as (server, found):
        document = server.request("GET", "/openapi.json").json()
        yield "openapi-of-models.json", _json(document)
        for name, _, _ in tables:
            yield f"errors/real/{name}", "".join(_of_examples(server, document, model=name))
    yield from _of_roles("real", found)


def _errors(name: str, server: Server, document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    asker = Asker(server)
    for operation in bad_requests.operations(document):
        answers = [asker.answer(asked) for asked in bad_requests.of_operation(operation)]
        yield f"errors/{name}/{operation.method} {_file(operation.path)}", "".join(answers)
    yield f"errors/{name}/methods", "".join(asker.answer(asked) for asked in bad_requests.of_paths(document))
    asker.close()


def _of_roles(name: str, found: dict[str, roles.Role]) -> Iterator[tuple[str, str]]:
    for title, role in found.items():
        yield f"modules/{name}/{title}", _json(roles.compared(role.imported))
        yield f"{NOT_COMPARED}/modules/{name}/{title}", "\n".join(role.imported)
    if name == "fake":
        times = {title: roles.import_time(role.module) for title, role in found.items() if title != "supervisor"}
        yield f"{NOT_COMPARED}/import-times.json", _json({**times, "supervisor": roles.import_time("server.cli")})


def metrics_of(page: str) -> str:
    """Names, help, types and the labels of each name: all that doesn't change from one run to the next."""
    lines = {line for line in page.splitlines() if line.startswith("#")}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? ", page, re.MULTILINE):
        lines.add(" ".join([name, *sorted(re.findall(r"(\w+)=", labels))]))
    return "\n".join(sorted(lines))


def differences(old: Path, new: Path) -> int:
    """Print what differs; 1 if anything does."""
    names = sorted({str(file.relative_to(folder)) for folder in (old, new) for file in folder.rglob("*")})
    found = 0
    for name in names:
        if name.startswith(NOT_COMPARED) or (old / name).is_dir() or (new / name).is_dir():
            continue
        before, after = [
            (side / name).read_text().splitlines() if (side / name).is_file() else [] for side in (old, new)
        ]
        if before != after:
            found += 1
            lines = list(difflib.unified_diff(before, after, str(old / name), str(new / name), n=3, lineterm=""))
            print(*lines[:_SHOWN], *([f"… {len(lines) - _SHOWN} more lines"] if len(lines) > _SHOWN else []), sep="\n")
    print(f"{found} of {len(names)} files differ" if found else f"nothing differs in {len(names)} files")
    return 1 if found else 0


def _file(path: str) -> str:
    return path.replace("/", "_")


def _json(content: Any) -> str:
    return json.dumps(content, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
