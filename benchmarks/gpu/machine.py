"""What a report says of the machine: the card, its driver, the libraries. No names of hosts or users."""

import importlib.metadata
import platform
import re
import shutil
import subprocess

import torch

TOY = "toy sizes: not a measurement"
_PACKAGES = ("torch", "triton", "transformers", "sentence-transformers", "numpy")


def name_of(device: torch.device, *, is_tiny: bool) -> str:
    """The card's name; what is no measurement says so."""
    return TOY if is_tiny else torch.cuda.get_device_name(device)


def slug_of(device: torch.device, *, is_tiny: bool) -> str:
    """The same in a file's name."""
    if is_tiny:
        return "toy-not-a-measurement"
    name = torch.cuda.get_device_name(device).lower().replace("nvidia", "")
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def described(device: torch.device) -> str:
    """Card, memory, multiprocessors, driver."""
    if device.type != "cuda":
        return f"CPU, {platform.machine()}"
    card = torch.cuda.get_device_properties(device)
    return (
        f"{card.name}, {card.total_memory / 2**30:.0f} GiB, {card.multi_processor_count} multiprocessors, "
        f"compute capability {card.major}.{card.minor}, driver {_driver()}, CUDA {torch.version.cuda}, "
        f"cuDNN {torch.backends.cudnn.version()}"  # type: ignore[no-untyped-call]
    )


def versions() -> str:
    """Of Python and what computes."""
    return f"Python {platform.python_version()}, " + ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "unknown"
    command = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return asked.stdout.split("\n")[0].strip() or "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
