"""`embedline ray`: its commands and their arguments."""

import sys
from typing import Annotated

import typer

_Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A TOML file as for serve --config, with a table [ray] beside.")
]


def serve(config: _Config) -> None:
    """Serve by Ray Serve until SIGTERM or Ctrl-C: on the cluster of RAY_ADDRESS, this machine's, else a new one."""
    from server.ray.serving import serve as run

    sys.exit(run(config))


COMMANDS = {"serve": serve}
