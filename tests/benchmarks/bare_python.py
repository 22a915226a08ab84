"""A Python as it stands on a bare GPU machine: it has what computes and what runs tests, and nothing of the server."""

import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

# what a GPU's machine is taken to have; what these require comes with them
PACKAGES = ("torch", "triton", "numpy", "transformers", "pytest", "pytest-xdist")


# what only newer releases of these require
_ABSENT = ("pydantic", "pydantic_core", "annotated_types")


def bare_python(folder: Path) -> Path:
    """Make an environment of these packages and what they require, all linked to this one's files; its executable."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for found in _with_requirements(PACKAGES):
        for entry in _entries(found):
            target = site / entry.name
            if entry.exists() and not target.exists():
                target.symlink_to(entry)
    return folder / "bin" / Path(sys.executable).name


def _with_requirements(names: tuple[str, ...]) -> Iterator[Distribution]:
    """Each once. What this environment lacks is left out: it works without."""
    missing, seen = list(names), set(_ABSENT)
    while missing:
        name = missing.pop()
        if name.lower() in seen:
            continue
        seen.add(name.lower())
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        yield found
        requirements = [Requirement(line) for line in found.requires or ()]
        missing += [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]


def _entries(found: Distribution) -> set[Path]:
    """The files and folders in site-packages that belong to it."""
    tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__", "bin")}
    return {Path(str(found.locate_file(top))) for top in tops}
