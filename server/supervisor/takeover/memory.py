"""Whether two servers fit into this machine's memory, or their container's, for the time that both run."""

from collections.abc import Sequence
from pathlib import Path

from engine.machine.free_memory import free_memory
from server.settings.flag import SettingsError

_KIB = 1024
_MIB = 1 << 20
# Pages of files, such as mapped weights, are not in it: both servers share them.
_OWN = frozenset({"Pss_Anon:", "Pss_Shmem:"})


def memory_of(pids: Sequence[int]) -> int:
    """Bytes that these processes hold and that a second server like this one takes again."""
    return sum(map(_memory, pids))


def check_room(num_bytes: int) -> None:
    """Raises SettingsError where a second server like the running one, which takes so many bytes, does not fit."""
    free = free_memory()
    if num_bytes > free:
        raise SettingsError(
            f"--takeover: the running server holds {num_bytes // _MIB} MiB and a second one does not fit beside it: "
            f"{free // _MIB} MiB are free; stop the running server first, then start this one"
        )


def _memory(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has ended
        return 0
    fields = (line.split() for line in text.splitlines())
    return sum(int(words[1]) * _KIB for words in fields if words[0] in _OWN)
