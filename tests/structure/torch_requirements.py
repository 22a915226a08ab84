"""What the public build of the torch that `make` installs requires: the list in torch_requirements.txt, and what the
index says of it. As a program it writes the list anew.

The torch that is installed here is no witness: a build for CPUs requires neither CUDA nor Triton.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.structure.sources import ROOT

LIST = Path(__file__).with_suffix(".txt")


def pinned_torch() -> str:
    """The version that the Makefile installs."""
    (version,) = re.findall(r"^TORCH := torch==([\d.]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return str(version)


def listed() -> list[str]:
    return [line for line in LIST.read_text().splitlines() if not line.startswith("#")]


def of_index(version: str) -> list[str] | None:
    """The requirements in the metadata of pip's default index; None if it can't be reached or has no such build.

    pip's settings are left out, since they may name folders with other builds. Where the index doesn't offer metadata
    by themselves, pip downloads the whole build (0.5 GB).
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "--isolated", "install", "--dry-run", "--ignore-installed", "--no-deps"]
        subprocess.run(
            [*command, "--no-cache-dir", "--quiet", "--retries", "0", "--report", str(report), f"torch=={version}"],
            env=os.environ | {"PIP_CONFIG_FILE": os.devnull},
            check=False,
        )
        if not report.exists():
            return None
        (torch,) = json.loads(report.read_text())["install"]
    return [line for line in torch["metadata"]["requires_dist"] if "extra ==" not in line]


def main() -> None:
    found = of_index(pinned_torch())
    if found is None:
        sys.exit(f"torch {pinned_torch()} was not found on pip's default index")
    comments = [line for line in LIST.read_text().splitlines() if line.startswith("#")]
    LIST.write_text(
        "\n".join([*(re.sub(r"torch [\d.]+", f"torch {pinned_torch()}", line) for line in comments), *found, ""])
    )


if __name__ == "__main__":
    main()
