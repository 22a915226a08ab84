"""From how many tokens on a text that is alone is computed on all cores, measured as a model is loaded.

All cores take a second compilation, which holds the weights again, and threads that go on waiting for a while after
each text. On CPUs that multiply bfloat16 in tiles they hardly help a short text, elsewhere they halve its time.

Other processes only ever make a trial slower, so the quickest of several counts. A virtual machine can be without its
second core for longer than these take, and the outcome is kept for later starts, so the trials are repeated before
the answer is no. Where even the quickest trial did not have its cores, the machine is too busy to say anything.
"""

import math
import time
from collections.abc import Iterable

import numpy as np

from engine.cpu.minibatch import ATTENTION_MASK
from engine.cpu.openvino import Executor, Run

MIN_GAIN = 1.25  # the rate on all cores, compared to that on one
_LENGTHS = (16, 64)  # tokens of the texts that are measured
_NUM_TRIALS = 7  # of each way in turn
_NUM_REPEATS = 4  # of these, as long as all cores gain too little
_MAX_SECONDS = 0.4  # for one length; of a large model there are fewer trials
_MIN_CORES_OF_ONE, _MIN_CORES_OF_ALL = 0.9, 1.5  # used in the quickest trial; the threads of all cores wait by spinning


def least_tokens(executor: Executor, *, max_seqlen: int) -> int | None:
    """The least number of tokens from which all cores are MIN_GAIN times as fast; 0 = there is none, None = the machine
    is too busy to say. The executor has both ways.
    """
    assert executor.wide is not None
    lengths = [length for length in _LENGTHS if length <= max_seqlen] or [max_seqlen]
    for length in lengths:
        quickest = [(math.inf, 0.0)] * 2
        for _ in range(_NUM_REPEATS):
            newest = _quickest(executor.streams[0], executor.wide, executor.input_names, length)
            (on_one, one_used), (on_all, all_used) = quickest = list(map(min, quickest, newest))
            if one_used < _MIN_CORES_OF_ONE or all_used < _MIN_CORES_OF_ALL:
                return None
            if on_one >= MIN_GAIN * on_all:
                return 1 if length == lengths[0] else length
    return 0


def _quickest(one: Run, all_cores: Run, input_names: Iterable[str], length: int) -> Iterable[tuple[float, float]]:
    """Seconds of the quickest trial of each way with one text, and the cores that it used."""
    inputs = {name: np.full((1, length), name == ATTENTION_MASK, np.int64) for name in input_names}
    trials: dict[Run, list[tuple[float, float]]] = {one: [], all_cores: []}
    until = time.perf_counter() + _MAX_SECONDS
    for number in range(1 + _NUM_TRIALS):
        for run, found in trials.items():
            began, used = time.perf_counter(), time.process_time()
            run(inputs)
            seconds = time.perf_counter() - began
            if number:  # the first also prepares the shape
                found.append((seconds, (time.process_time() - used) / seconds))
        if number and time.perf_counter() > until:
            break
    return map(min, trials.values())
