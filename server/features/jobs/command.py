"""`embedline jobs`: asks a running server what each API key holds of --jobs-quota, and removes what one holds."""

import asyncio
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from server.features.jobs.disk import CALLS_AT
from server.features.rpc import Caller
from server.requests.errors import RequestError
from server.settings.flag import SettingsError

_Folder = Annotated[str, typer.Option("--jobs", metavar="DIR", help="The folder of the server's --jobs.")]
_SECONDS = 600.0  # for a key that holds very much


def held(*, jobs: _Folder) -> None:
    """Print the bytes that each API key holds, the most first. "-" stands for a server without keys."""
    answer = asyncio.run(_asked(jobs, "holders", ""))
    for owner, num_bytes in sorted(answer["held"].items(), key=lambda pair: -pair[1]):
        print(f"{num_bytes:>16}  {owner or '-'}")
    print(f"{answer['quota_bytes']:>16}  --jobs-quota")


def remove(
    key: Annotated[str, typer.Argument(metavar="KEY", help="As `embedline jobs held` shows it.")], *, jobs: _Folder
) -> None:
    """Remove the results, files and batches of one API key that no open request or batch needs. There is no undo."""
    answer = asyncio.run(_asked(jobs, "remove_held", "" if key == "-" else key))
    batches, files = answer["removed"]["batches"], answer["removed"]["files"]
    print(f"removed results, {files} files and {batches} batches; {answer['left']} bytes are left")


async def _asked(folder: str, what: str, owner: str) -> dict[str, Any]:
    """The value that the server of this folder answers. Raises SettingsError."""
    try:
        path = (Path(folder) / f"{CALLS_AT}{socket.gethostname()}").read_text()
    except OSError as error:
        raise SettingsError(f"--jobs: no server of this machine has this folder: {error.strerror}") from None
    client = Caller(path, "jobs")
    client.open()
    try:
        found: dict[str, Any] = (await client.call(what, owner, timeout_s=_SECONDS)).value
        return found
    except RequestError as refused:
        raise SettingsError(f"--jobs: the server of this folder does not do it: {refused.message}") from None
    finally:
        client.close()
