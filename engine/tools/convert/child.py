"""The converting process: `python -P -m engine.tools.convert.child <parent's pid>`, a Job on its standard input.

Gives up what it does not need before it imports torch and opens the first file; says what it did on standard output.
"""

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from engine.failures import one_line
from engine.tools.convert.isolation import isolate
from engine.tools.convert.job import Converted, Job
from engine.tools.convert.plan import Target
from engine.types import ModelError
from wire.process import settle

if TYPE_CHECKING:
    import torch

# Tied tensors are written once for each name; T5, say, has four names for its embeddings.
_MAX_GROWTH = 4
_MAX_MORE_BYTES = 16 << 20


def main() -> None:
    """Do the job and answer; what went wrong is an answer too."""
    settle(int(sys.argv[1]))
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # nothing that a library prints belongs into the answer
    job = Job.from_json(sys.stdin.read())
    answer = _answer(job)
    with open(answer_fd, "w") as opened:
        json.dump(answer, opened)


def _answer(job: Job) -> dict[str, Any]:
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


def _convert(target: Target, job: Job) -> Converted:
    from engine.tools.convert import writing  # imports torch

    tensors = _tensors(target)
    size = writing.num_bytes(tensors)
    if size > _MAX_GROWTH * sum(path.stat().st_size for path in target.sources.values()) + _MAX_MORE_BYTES:
        raise ModelError(f"{min(target.sources)} is refused: its tensors would be far larger than the file")
    stem = job.folder / target.stem
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = writing.write(tensors, stem, max_shard_bytes=job.max_shard_bytes)
    prefix = target.stem[: -len(stem.name)]
    return Converted(target.stem, tuple(prefix + file for file in files), len(tensors), size)


def _tensors(target: Target) -> "dict[str, torch.Tensor]":
    """Of all its files; where there is an index, those that it names and no others."""
    from engine.tools.convert import pickled  # imports torch

    loaded = {name: pickled.load(path, name) for name, path in target.sources.items()}
    if target.shards is None:
        (tensors,) = loaded.values()
        return tensors
    lacking = [shard for tensor, shard in target.shards.items() if tensor not in loaded[shard]]
    if lacking:
        raise ModelError(f"{lacking[0]} lacks a tensor that its index names")
    return {tensor: loaded[shard][tensor] for tensor, shard in target.shards.items()}


if __name__ == "__main__":
    main()
