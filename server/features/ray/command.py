"""`embedline ray`: its commands and their arguments."""

import sys
from typing import Annotated

import typer

_Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A TOML file as for serve --config, with a table [ray] beside.")
]


def serve(config: _Config) -> None:
    """Serve by Ray Serve until SIGTERM or Ctrl-C: on the cluster of RAY_ADDRESS, this machine's, else a new one."""
    from server.features.ray.serving import serve as run

    sys.exit(run(config))


def manifest(
    config: _Config,
    image: Annotated[str, typer.Option(help="Of all pods: Ray 2.60 with pip install 'embedline[ray]'.")],
    name: Annotated[str, typer.Option(help="Of the RayService.")] = "embedline",
) -> None:
    """Print a RayService for Kubernetes with the KubeRay operator, that serves the same."""
    from server.features.ray.manifest import manifest as written
    from server.features.ray.settings import read_ray

    print(written(read_ray(config), image=image, name=name), end="")
