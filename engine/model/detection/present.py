"""Whether a model folder has its weights, and has within itself what is read of it."""

import os
import shlex
from pathlib import Path

from engine.model.json_files import object_in, read_object
from engine.model.modules import MAX_DEPTH
from engine.types import ModelError

_UNREAD_WEIGHTS = frozenset((".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"))
_READ = frozenset((".json", ".safetensors", ".jinja", ".metadata"))


def check_links(folder: Path) -> None:
    """Raises ModelError where a file that may be read is a link to somewhere else.

    In the hub's cache, links to the repository's own blobs are how its files are kept.
    """
    home = folder.resolve()
    homes = [home, *([home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [])]
    for here, folders, names in os.walk(home):
        for name in [*folders, *names]:
            file = Path(here, name)
            if not file.is_symlink() or (name in names and file.suffix not in _READ):
                continue
            target = file.resolve()
            if not any(target.is_relative_to(each) for each in homes):
                raise ModelError(f"{file} is a link that leads out of the model's folder")
        if len(Path(here).relative_to(home).parts) >= MAX_DEPTH:
            folders.clear()


def check_weights(folder: Path) -> None:
    """Raises ModelError where a folder has not all its safetensors files; it says what makes them."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return
    if index.is_file():
        shards = {str(shard) for shard in object_in(read_object(index), "weight_map").values()}
        if any(Path(shard).name != shard for shard in shards):
            raise ModelError(f"{index} names a file that is not in its folder")
        missing = sorted(shard for shard in shards if not (folder / shard).is_file())
        if missing:
            raise ModelError(f"{folder} lacks {missing[0]!r}, which model.safetensors.index.json names")
        return
    unread = sorted(file.name for file in folder.iterdir() if file.suffix in _UNREAD_WEIGHTS)
    found = f"; {', '.join(unread[:3])} is not read, for such files can run code" if unread else ""
    raise ModelError(
        f"{folder} has no model.safetensors, and weights are read from *.safetensors alone{found}{_way_out(folder)}"
    )


def _way_out(folder: Path) -> str:
    """What makes safetensors of what is there. Of a model on the hub nothing but safetensors is to be seen here."""
    if any((folder / name).is_file() for name in ("pytorch_model.bin", "pytorch_model.bin.index.json")):
        return f": embedline convert {shlex.quote(str(folder))} OUT"
    return "; embedline convert MODEL OUT makes them of pytorch_model.bin, where the model has that"
