"""`embedline.ray_serve:application`, the import_path in a config of Ray Serve, as `embedline ray manifest` writes it.

A launcher as `__main__` is: it runs in Ray's processes, where the application's folder is not on the path.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def application(args: Mapping[str, Any]) -> Any:
    """The application of Serve. `args`: `config`, the text of a file as `embedline ray serve` takes it. Raises
    ValueError for other keys, and SettingsError."""
    if set(args) != {"config"}:
        raise ValueError(f"args must have config alone, and have: {', '.join(map(repr, args)) or 'nothing'}")
    bundled = os.path.join(_HERE, "_app")
    sys.path.insert(0, bundled if os.path.isdir(bundled) else os.path.dirname(_HERE))
    from server.features.ray.serving import application as of_config
    from server.features.ray.serving import check_version
    from server.features.ray.settings import read_ray

    check_version()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(str(args["config"]))
        return of_config(read_ray(path))
