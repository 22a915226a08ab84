"""Folders of random weights for servers, the next one written while a server starts.

Weights go from the device's memory straight into files, several at once: 16 GB of them are to take a few seconds.
"""

import gc
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from benchmarks.gpu.random_models import RandomModel, bias_of_words, build, save_pooling, save_tokenizer
from benchmarks.gpu.shapes import Shape
from engine.model.coverage import Use

_SHARD_BYTES = 2_000_000_000
_NUM_WRITERS = 8
_DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32"}  # as safetensors has them
_MEMORY = Path("/dev/shm")
_CLASSES: Mapping[Use, Any] = {Use.RERANK: AutoModelForSequenceClassification, Use.SPARSE: AutoModelForMaskedLM}
_SPARSE_SEQLEN = 128  # tokens of a text that is to have few words
_ROOM = 30_000_000_000  # bytes: 8 billion parameters in bf16, the smaller models, and as much again


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One that is wanted."""

    shape: Shape
    use: Use = Use.EMBED  # a generative reranker answers "yes" or "no"

    @property
    def name(self) -> str:
        """Of the folder."""
        return f"{self.shape.name} {self.use}".lower().replace(",", "").replace(" ", "-")


class Folders:
    """Those in one place. One thread writes them, one after the other."""

    def __init__(self, place: Path, device: torch.device) -> None:
        self._place = place
        self._device = device
        self._thread = ThreadPoolExecutor(1)
        self._begun: dict[str, Future[Path]] = {}

    def begin(self, wanted: ModelFolder) -> Future[Path]:
        """Its path comes once it is written. One that an earlier run has written stays."""
        if wanted.name not in self._begun:
            self._begun[wanted.name] = self._thread.submit(write, wanted, self._place / wanted.name, self._device)
        return self._begun[wanted.name]

    def close(self) -> None:
        """Waits for what is being written."""
        self._thread.shutdown(cancel_futures=True)


def roomy_place() -> str:
    """Where tens of gigabytes go: memory where there is that much, else where temporary files are."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM
    return str(_MEMORY) if has_room else tempfile.gettempdir()


def write(wanted: ModelFolder, folder: Path, device: torch.device) -> Path:
    """The folder, which any library loads."""
    written = folder.with_name(f"{folder.name}.written")
    if written.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    model = _built(wanted, device)
    answers = wanted.use is Use.GENERATIVE_RERANK  # by the words' own table
    _save_weights(model, folder, prefix="model." if answers else "")
    model.config.architectures = ["Qwen3ForCausalLM" if answers else type(model.module).__name__]
    model.config.dtype = model.dtype
    model.config.save_pretrained(folder)
    save_tokenizer(wanted.shape, folder)
    if answers:
        _name_answers(wanted.shape, folder / "tokenizer.json")
    elif wanted.use is Use.EMBED:
        save_pooling(wanted.shape, folder)
    written.touch()
    del model
    gc.collect()  # parts of it refer to each other
    if device.type == "cuda":
        torch.cuda.empty_cache()  # for the server
    return folder


def _built(wanted: ModelFolder, device: torch.device) -> RandomModel:
    shape = wanted.shape
    if wanted.use is Use.RERANK:
        shape = replace(shape, config={**shape.config, "num_labels": 1})
    model = build(shape, device, is_tame=True, library_class=_CLASSES.get(wanted.use, AutoModel))
    if wanted.use is Use.SPARSE:
        deviation = model.config.initializer_range * shape.hidden_size**0.5  # of scores, behind the head's norm
        matrix: nn.Linear = model.module.get_output_embeddings()  # type: ignore[no-untyped-call]
        matrix.bias.fill_(bias_of_words(deviation, _SPARSE_SEQLEN))
    return model


def _name_answers(shape: Shape, file: Path) -> None:
    """The last two words are the answers."""
    tokenizer = json.loads(file.read_text())
    words = tokenizer["model"]["vocab"]
    for number, answer in enumerate(("no", "yes"), shape.vocab_size - 2):
        words[answer] = words.pop(f"w{number}")
    file.write_text(json.dumps(tokenizer))


def _save_weights(model: RandomModel, folder: Path, *, prefix: str) -> None:
    tensors = {f"{prefix}{name}": tensor for name, tensor in model.module.state_dict().items()}
    shards = _shards(tensors)
    files = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    with ThreadPoolExecutor(_NUM_WRITERS) as writers:
        list(writers.map(_save_shard, [folder / file for file in files], shards))
    index = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
    total = {"total_size": sum(tensor.nbytes for tensor in tensors.values())}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": total, "weight_map": index}))


def _shards(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """In their order, a new one begun where the last is large enough."""
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in tensors.items():
        if sum(one.nbytes for one in shards[-1].values()) >= _SHARD_BYTES:
            shards.append({})
        shards[-1][name] = tensor
    return shards


def _save_shard(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """The format of safetensors, written through memory that is the file's own."""
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        described[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    head = json.dumps(described).encode()
    head += b" " * (-len(head) % 8)
    head = len(head).to_bytes(8, "little") + head
    with file.open("wb") as opened:
        os.posix_fallocate(opened.fileno(), 0, len(head) + end)  # a full disk is an error here, and a death below
        opened.write(head)
    values = torch.from_file(str(file), shared=True, size=len(head) + end, dtype=torch.uint8)[len(head) :]
    begin = 0
    for tensor in tensors.values():
        values[begin : begin + tensor.nbytes].copy_(tensor.detach().contiguous().view(-1).view(torch.uint8))
        begin += tensor.nbytes
