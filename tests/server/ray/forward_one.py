"""Sends one request through a Forward to a server on a Unix socket, and prints what came there. Runs where Ray is.

stdin: {"method", "path", "query", "headers": pairs, "body": pieces}
stdout: {"line": the request line, "headers": pairs, "body"}
"""

import asyncio
import json
import sys
import tempfile
from typing import Any

from server.features.ray.actors import Forward

_ANSWER = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


async def main() -> None:
    asked = json.load(sys.stdin)
    got = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = [one.split(": ", 1) for one in lines]
        size = int({name.lower(): value for name, value in headers}.get("content-length", 0))
        body = (await reader.readexactly(size)).decode()
        writer.write(_ANSWER)
        writer.close()
        got.set_result({"line": line, "headers": headers, "body": body})

    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": one.encode(), "more_body": True} for one in asked["body"]
    ]
    messages.append({"type": "http.request", "body": b""})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(_: Any) -> None:
        return None

    scope = {
        "type": "http",
        "method": asked["method"],
        "raw_path": asked["path"].encode(),
        "query_string": asked["query"].encode(),
        "headers": [(name.encode(), value.encode()) for name, value in asked["headers"]],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/server.sock"
        async with await asyncio.start_unix_server(answer, path):
            await Forward(path)(scope, receive, send)
            json.dump(await got, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
