"""Finds what a Python has installed, without importing any of it. Imports the standard library alone.

Also run as a program, by another Python than the server's: names of modules in, JSON out.
"""

import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Environment:
    """One Python. Modules are there or not; some have a distribution that tells a version."""

    python: str  # its program
    version: str
    versions: dict[str, str] = field(default_factory=dict)  # of the modules that are there; "" = not known

    def lacks(self, modules: Iterable[str]) -> list[str]:
        """The modules that are not there."""
        return [module for module in modules if module not in self.versions]


def probe(modules: Iterable[str]) -> Environment:
    """The environment of the Python that this runs in. modules: names without a dot."""
    versions = {}
    distributions = importlib.metadata.packages_distributions()
    for module in modules:
        if importlib.util.find_spec(module) is not None:
            versions[module] = _version(distributions.get(module, [module])[0])
    return Environment(sys.executable, ".".join(map(str, sys.version_info[:3])), versions)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    print(json.dumps(asdict(probe(sys.argv[1:]))))
