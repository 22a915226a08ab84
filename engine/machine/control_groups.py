"""Where the kernel keeps the limits of this process's container. Knows no limit, only the folders."""

from collections.abc import Iterator
from pathlib import Path


def folders(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """The control groups whose limits hold for this process, of both versions, each before the one around it.

    `controller` is the kernel's name, such as cpu or memory. Some folders may not be there: a container sees its own
    group as the outermost.
    """
    mounted = root / "sys" / "fs" / "cgroup"
    file = root / "proc" / "self" / "cgroup"
    for line in file.read_text().splitlines() if file.is_file() else ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            tops = (mounted, mounted / "unified")
        elif controller in controllers.split(","):
            tops = (mounted / controller, mounted / controllers)
        else:
            continue
        for top in dict.fromkeys(tops):
            own = top / path.lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))
