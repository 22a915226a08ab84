"""Plants mistakes one at a time in a copy of the tree, and says which of them the tests find.

    python -m tests.planted_mistakes                  the nearest tests of the default tier
    python -m tests.planted_mistakes --all            then the rest of the default tier, then the full tier
    python -m tests.planted_mistakes --only "A key"    those whose names begin so

The mistakes are in tests/structure/mistakes.py. The text that one replaces must occur exactly once in its package. The
exit code is 1 if a mistake was not found, or could not be planted.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.structure.mistakes import MISTAKES, Mistake

ROOT = Path(__file__).resolve().parents[1]


def copy_of_the_tree(folder: Path) -> Path:
    """What git knows of, as it stands here."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (source := ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
    return folder


def place_of(mistake: Mistake, tree: Path) -> Path | None:
    """The one file of the package that has the right text, where it has it once; else None."""
    found = [(file, file.read_text().count(mistake.right)) for file in (tree / mistake.package).rglob("*.py")]
    places = [(file, count) for file, count in found if count]
    return places[0][0] if len(places) == 1 and places[0][1] == 1 else None


def is_found(tree: Path, *words: str) -> bool:
    """Whether a test of these fails. Nothing is kept from one run to the next."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run([*command, *words], cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1, 2):  # 2: a module of tests could not even be imported
        raise RuntimeError(ended.stdout[-2000:] + ended.stderr[-2000:])
    return ended.returncode != 0


def where_found(tree: Path, mistake: Mistake, *, is_all: bool) -> str:
    """The first of the groups of tests that finds it, or ""."""
    near = [path for path in mistake.near.split() if (tree / path).exists()]
    if is_found(tree, "--tier=default", *near):
        return "near"
    side_by_side = ("-n", "2", "--dist", "worksteal")
    if is_all and is_found(tree, "--tier=default", *side_by_side):
        return "default tier"
    return "full tier" if is_all and is_found(tree, "--tier=rest", *side_by_side) else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    chosen = [mistake for mistake in MISTAKES if mistake.name.startswith(asked.only)]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_the_tree(Path(folder))
        for mistake in chosen:
            began = time.monotonic()
            if (file := place_of(mistake, tree)) is None:
                verdict = "not planted: its text does not stand there exactly once"
            else:
                right = file.read_text()
                file.write_text(right.replace(mistake.right, mistake.wrong))
                verdict = where_found(tree, mistake, is_all=asked.all) or "NOT FOUND"
                file.write_text(right)
            if verdict.isupper() or verdict.startswith("not"):
                missed.append(mistake.name)
            print(f"{time.monotonic() - began:6.0f} s  {mistake.name}: {verdict}", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} mistakes were found")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
