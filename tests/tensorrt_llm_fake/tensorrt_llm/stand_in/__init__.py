"""What the stand-in has that upstream has not: ways to fail, chosen by the environment variable FAKE_TENSORRT_LLM.

A list of these, with commas between them:
  old_paths               attention is where it was before upstream's PR 17968
  no_encode               LLM has no encode, as in 1.2.1
  no_raw_logits           encode takes no return_raw_logits
  no_graphs               there is no EncodeCudaGraphConfig
  needs_tokenizer         the constructor fails of skip_tokenizer_init
  oom@load                the GPU's memory is not enough for the weights
  oom@tokens:N            ... nor for a batch of more than N tokens
  device_error@load       the GPU fails while weights are loaded
  device_error@while:PATH ... and at every batch, as long as there is such a file
  device_error@token:N    it fails at the first batch with this id, and at every batch after
  device_error@file:PATH  ... at the first batch once there is such a file, which it takes away
  nan                     no row is finite
  nan@twice:N             the row of a sequence with this id twice in succession is not
  leaks                   the row of a sequence has something of the one before it in the batch
  max_batch_size=N, max_num_tokens=N, max_seq_len=N   a limit is that, whatever was asked for
"""

import os

import torch


def faults() -> dict[str, str]:
    """Those that are chosen, and what they are given."""
    chosen = [fault for fault in os.environ.get("FAKE_TENSORRT_LLM", "").split(",") if fault]
    found = {}
    for fault in chosen:
        name, _, value = fault.partition("=") if "=" in fault.partition(":")[0] else fault.partition(":")
        found[name] = value
    return found


def only_with(*, old_paths: bool, module: str) -> None:
    """A module that is there in one generation of paths. Raises ModuleNotFoundError in the other."""
    if ("old_paths" in faults()) != old_paths:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def out_of_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.31 GiB "
        "is free."
    )


def device_error() -> RuntimeError:
    return RuntimeError(
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported at "
        "some other API call, so the stacktrace below might be incorrect."
    )
