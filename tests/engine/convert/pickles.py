"""Makes model folders with pickled weights, and pickles that mean harm."""

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.engine.folder_files import write
from tests.engine.tiny_models import save


class Touch:
    """Unpickled without care, it makes a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.canary,)


def pickled(family: str, folder: Path) -> dict[str, torch.Tensor]:
    """A tiny model whose weights are pytorch_model.bin; what they are."""
    save(family, folder)
    tensors: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    return tensors


def small(folder: Path, **tensors: Any) -> Path:
    """Just enough of a model to be converted: what pytorch_model.bin holds may be anything."""
    write(folder / "config.json", {"model_type": "bert"})
    torch.save(tensors or {"a": torch.ones(3)}, folder / "pytorch_model.bin")
    return folder


def compress(file: Path) -> None:
    """The same archive, deflated."""
    plain = file.with_name("plain.zip")
    shutil.move(file, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.infolist():
            new.writestr(part.filename, old.read(part))
    plain.unlink()
