"""The converting process: `python -P -m engine.convert.process <parent's pid>`, a ConversionJob on standard input.

It gives up the network, and limits its memory, CPU time and files, before it imports torch and opens the first file.
It answers in JSON on its standard output.
"""

import contextlib
import ctypes
import json
import os
import resource
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.convert.conversion import ConversionJob, ConversionLimits, ConvertedTarget
from engine.convert.plan import Target
from engine.machine.failures import one_line
from engine.types import ModelError
from wire.process import settle

if TYPE_CHECKING:
    import torch


# Tied tensors are written once for each name; T5, say, has four names for its embeddings.
_MAX_GROWTH = 4
_MAX_MORE_BYTES = 16 << 20

# linux/sched.h and linux/prctl.h
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_NO_NEW_PRIVS = 38


def main() -> None:
    """Do the job and answer. An error is an answer too."""
    settle(int(sys.argv[1]))
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not get into the answer
    job = ConversionJob.from_json(sys.stdin.read())
    answer = _answer(job)
    with open(answer_fd, "w") as opened:
        json.dump(answer, opened)


def _answer(job: ConversionJob) -> dict[str, Any]:
    without_network = isolate(job.limits)
    try:
        converted = [asdict(_convert(target, job)) for target in job.targets]
    except ModelError as error:
        return {"error": str(error)}
    except ModuleNotFoundError as error:
        return {"error": f"converting needs {error.name}, which is not installed: pip install 'embedline[server]'"}
    except MemoryError:
        return {"error": "the weights take far more memory than files of their size should"}
    except Exception as error:  # a full disk, or one that is read-only: libraries raise what they like
        return {"error": f"the weights can't be written: {one_line(error)}"}
    return {"converted": converted, "without_network": without_network}


def _convert(target: Target, job: ConversionJob) -> ConvertedTarget:
    from engine.convert import pickle_to_safetensors  # imports torch

    tensors = _tensors(target)
    size = pickle_to_safetensors.num_bytes(tensors)
    if size > _MAX_GROWTH * sum(path.stat().st_size for path in target.sources.values()) + _MAX_MORE_BYTES:
        raise ModelError(f"{min(target.sources)} is refused: its tensors would be far larger than the file")
    stem = job.folder / target.stem
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = pickle_to_safetensors.write(tensors, stem, max_shard_bytes=job.max_shard_bytes)
    prefix = target.stem[: -len(stem.name)]
    return ConvertedTarget(target.stem, tuple(prefix + file for file in files), len(tensors), size)


def _tensors(target: Target) -> "dict[str, torch.Tensor]":
    """The tensors of all its files. If there is an index, only those that it names."""
    from engine.convert import pickle_to_safetensors  # imports torch

    loaded = {name: pickle_to_safetensors.load(path, name) for name, path in target.sources.items()}
    if target.shards is None:
        (tensors,) = loaded.values()
        return tensors
    lacking = [shard for tensor, shard in target.shards.items() if tensor not in loaded[shard]]
    if lacking:
        raise ModelError(f"{lacking[0]} does not have a tensor that its index names")
    return {tensor: loaded[shard][tensor] for tensor, shard in target.shards.items()}


def isolate(limits: ConversionLimits) -> bool:
    """Limit this process and its children, and leave the network. Returns whether the kernel permitted the latter.

    Call it while the process has one thread: the kernel requires that for a new namespace.
    """
    _limit(resource.RLIMIT_CORE, 0)  # no dump of what is in memory
    _limit(resource.RLIMIT_FSIZE, limits.max_file_bytes)
    _limit(resource.RLIMIT_DATA, limits.max_memory_bytes)
    _limit(resource.RLIMIT_CPU, limits.max_cpu_seconds, reserve=1)  # SIGXCPU first, which says why; then SIGKILL
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return _leave_network(libc)


def _limit(kind: int, value: int, *, reserve: int = 0) -> None:
    """The hard limit is larger by the reserve. No limit is raised."""
    _, given = resource.getrlimit(kind)
    hard = value + reserve if given == resource.RLIM_INFINITY else min(value + reserve, given)
    resource.setrlimit(kind, (min(value, hard), hard))


def _leave_network(libc: ctypes.CDLL) -> bool:
    """Into a network namespace with nothing in it, not even a loopback that is up (unshare(2), user_namespaces(7)).

    Root may do so. Other users may inside of a user namespace, where the kernel or the container permits those; its
    maps keep this user's ids, so that files can be written.
    """
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWNET) == 0:
        return True
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


if __name__ == "__main__":
    main()
