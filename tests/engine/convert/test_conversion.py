"""Whole conversions, each by a child process: what comes out holds what went in, and a failure leaves nothing."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModel

from engine.convert import conversion
from engine.convert.conversion import convert
from engine.model import model_folder
from engine.store.output_folder import unfinished
from engine.types import ModelError
from tests.engine.convert.pickles import Touch, compress, pickled, small
from tests.engine.folder_files import write
from tests.tiers import full


def equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Names, dtypes and every bit."""
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor) for name, tensor in expected.items()
    )


def refusal(folder: Path, out: Path) -> str:
    before = sorted(out.parent.iterdir())
    with pytest.raises(ModelError) as caught:
        convert(folder, out)
    assert "\n" not in str(caught.value)
    assert sorted(out.parent.iterdir()) == before
    return str(caught.value)


@pytest.mark.full
def test_minilm_there_and_back(tmp_path: Path, minilm_folder: Path) -> None:
    folder, out = tmp_path / "minilm", tmp_path / "out"
    shutil.copytree(minilm_folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    expected = load_file(minilm_folder / "model.safetensors")
    torch.save(expected, folder / "pytorch_model.bin")

    done = convert(folder, out)

    assert equal(load_file(out / "model.safetensors"), expected)
    assert done.folder == out
    assert [(each.files, each.num_tensors) for each in done.converted] == [(("model.safetensors",), len(expected))]
    assert model_folder.read(out).pooling == model_folder.read(minilm_folder).pooling
    assert (out / "tokenizer.json").read_bytes() == (minilm_folder / "tokenizer.json").read_bytes()
    assert not (out / "pytorch_model.bin").exists()
    with safe_open(out / "model.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


@pytest.mark.full
def test_a_module_and_heads_of_their_own(tmp_path: Path) -> None:
    """As bge-m3 has them, and sentence-transformers' Dense."""
    folder, out = tmp_path / "model", tmp_path / "out"
    expected = pickled("xlm-roberta", folder)
    heads = {name: torch.nn.Linear(4, size) for name, size in (("sparse_linear", 1), ("colbert_linear", 4))}
    for name, head in heads.items():
        torch.save(head.state_dict(), folder / f"{name}.pt")
    write(folder / "2_Dense" / "config.json", {"in_features": 4, "out_features": 2})
    dense = {"linear.weight": torch.rand(2, 4, dtype=torch.float16)}
    torch.save(dense, folder / "2_Dense" / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    write(folder / "training_args.bin", "not weights")
    (folder / "modeling.py").write_text("raise SystemExit")

    done = convert(folder, out)

    assert equal(load_file(out / "model.safetensors"), expected)
    for name, head in heads.items():
        assert equal(load_file(out / f"{name}.safetensors"), head.state_dict())
    assert equal(load_file(out / "2_Dense" / "model.safetensors"), dense)
    assert sorted(str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()) == [
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "colbert_linear.safetensors",
        "config.json",
        "model.safetensors",
        "sparse_linear.safetensors",
    ]
    assert done.left_out == ("training_args.bin",)
    assert [each.stem for each in done.converted] == ["model", "2_Dense/model", "colbert_linear", "sparse_linear"]


@pytest.mark.full
def test_shards_become_shards(tmp_path: Path) -> None:
    folder, out = tmp_path / "model", tmp_path / "out"
    tensors = pickled("bert", folder)
    (folder / "pytorch_model.bin").unlink()
    shards = {name: f"pytorch_model-0000{1 + number % 2}-of-00002.bin" for number, name in enumerate(tensors)}
    for shard in set(shards.values()):
        of_shard = {name: tensor for name, tensor in tensors.items() if shards[name] == shard}
        torch.save({**of_shard, "beside the index": torch.ones(1)}, folder / shard)
    write(folder / "pytorch_model.bin.index.json", {"metadata": {}, "weight_map": shards})

    done = convert(folder, out, max_shard_bytes=20_000)

    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert done.converted[0].files == (*files, "model.safetensors.index.json")
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert len(files) > 2
    assert index["metadata"]["total_size"] == sum(tensor.numel() * 4 for tensor in tensors.values())
    found = {name: load_file(out / file)[name] for name, file in index["weight_map"].items()}
    assert equal(found, tensors)
    assert sum(len(load_file(out / file)) for file in files) == len(tensors)
    assert not (out / "pytorch_model.bin.index.json").exists()
    loaded = AutoModel.from_pretrained(out).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("zipped", [True, *full(False)])
def test_tied_and_strided_tensors_keep_their_values_and_dtypes(tmp_path: Path, zipped: bool) -> None:
    weight = torch.rand(3, 4, dtype=torch.bfloat16)
    tensors = {
        "tied": weight,
        "tied as well": weight,
        "transposed": weight.t(),
        "row": weight[1],
        "parameter": torch.nn.Parameter(torch.rand(2)),
        "expanded": torch.arange(3).expand(2, -1),
        "scalar": torch.tensor(7, dtype=torch.int32),
        "empty": torch.empty(0, 5),
        "empty as well": torch.empty(0),
        "mask": torch.tensor([True, False]),
    }
    folder = small(tmp_path / "model")
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)

    convert(folder, tmp_path / "out")

    assert equal(load_file(tmp_path / "out" / "model.safetensors"), tensors)


@pytest.mark.full
def test_an_empty_folder_is_taken_and_gets_this_users_usual_rights(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "usual").mkdir()

    convert(small(tmp_path / "model"), out)

    assert out.stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert (out / "model.safetensors").stat().st_mode == (out / "config.json").stat().st_mode


@pytest.mark.full
def test_links_of_the_hubs_cache_become_files(tmp_path: Path) -> None:
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / "0123"
    small(snapshot)
    (repository / "blobs").mkdir()
    for number, file in enumerate(snapshot.iterdir()):
        shutil.move(file, repository / "blobs" / str(number))
        file.symlink_to(f"../../blobs/{number}")

    convert(snapshot, tmp_path / "out")

    assert equal(load_file(tmp_path / "out" / "model.safetensors"), {"a": torch.ones(3)})
    assert not [file for file in (tmp_path / "out").iterdir() if file.is_symlink()]


def test_what_is_there_already_stays(tmp_path: Path) -> None:
    folder, out = small(tmp_path / "model"), tmp_path / "out"
    write(out / "mine.json", {})
    assert "is not overwritten" in refusal(folder, out)
    assert [file.name for file in out.iterdir()] == ["mine.json"]
    assert "is not overwritten" in refusal(folder, folder)
    assert "is not overwritten" in refusal(folder, out / "mine.json")
    with pytest.raises(ModelError, match="is not a folder"):
        convert(folder, tmp_path / "nowhere" / "out")


def test_an_empty_folder_gets_the_files_itself_for_it_may_be_a_volume(tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    was = out.stat().st_ino
    with pytest.raises(ZeroDivisionError), unfinished(out) as new:
        write(new / "config.json", {"half": 1 / 0})
    assert not list(out.iterdir())
    with unfinished(out) as new:
        write(new / "config.json", {})
        write(new / "1_Pooling" / "config.json", {})
    assert out.stat().st_ino == was
    assert sorted(entry.name for entry in out.iterdir()) == ["1_Pooling", "config.json"]


def test_two_processes_do_not_mix_their_files(tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match="something else writes into it"), unfinished(out), unfinished(out):
        pass
    assert not list(out.iterdir())


@pytest.mark.holds("Pickles are read only by one isolated process")
@pytest.mark.parametrize("zipped", [True, *full(False)])
@pytest.mark.parametrize("name", ["pytorch_model.bin", *full("sparse_linear.pt", "2_Dense/pytorch_model.bin")])
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, name: str, zipped: bool) -> None:
    folder, canary = small(tmp_path / "model"), tmp_path / "canary"
    (folder / name).parent.mkdir(exist_ok=True)
    torch.save({"a": torch.ones(3), "b": Touch(canary)}, folder / name, _use_new_zipfile_serialization=zipped)

    message = refusal(folder, tmp_path / "out")

    assert message == f"{name} is refused: it holds more than tensors, and reading that could run code"
    assert not canary.exists()
    torch.load(folder / name, weights_only=False)  # it would have, read without care
    assert canary.exists()


@pytest.mark.full
def test_a_tensor_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    folder = small(tmp_path / "model", a=torch.zeros(1).expand(1 << 40))
    assert "far larger than the file" in refusal(folder, tmp_path / "out")


@pytest.mark.full
def test_a_compressed_file_is_refused(tmp_path: Path) -> None:
    folder = small(tmp_path / "model", a=torch.zeros(1 << 20))
    compress(folder / "pytorch_model.bin")
    assert "compressed" in refusal(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("limit", "value", "part"),
    [
        ("max_file_bytes", 1 << 20, "can't be written"),
        *full(("max_memory_bytes", 200 << 20, "far more memory")),
    ],
)
def test_what_the_child_may_take_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, part: str
) -> None:
    limits = conversion._limits
    monkeypatch.setattr(conversion, "_limits", lambda *args: dataclasses.replace(limits(*args), **{limit: value}))
    folder = small(tmp_path / "model", a=torch.rand(8 << 20).reshape(8, -1).t())
    assert part in refusal(folder, tmp_path / "out")


def test_a_child_that_ends_or_talks_nonsense_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small(tmp_path / "model")
    for code, part in (
        ("os.kill(os.getpid(), signal.SIGXCPU)", "SIGXCPU: it took more time"),
        ("os._exit(3)", "code 3"),
        ("while True: os.write(1, bytes(65_536))", "does not end its answer"),
        ("os.write(1, b'[' * 65_536)", "a wrong answer"),
    ):
        (tmp_path / "module").mkdir(exist_ok=True)
        (tmp_path / "module" / "ending.py").write_text(f"import os, signal\n{code}")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "module"))
        monkeypatch.setattr(conversion, "_CHILD", "ending")
        assert part in refusal(folder, tmp_path / "out")


def test_the_child_is_told_no_secret_and_nothing_that_would_change_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_sesame")
    monkeypatch.setenv("HTTPS_PROXY", "http://sesame@proxy")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    assert "sesame" not in str(conversion._environment())
    assert "WEIGHTS_ONLY" not in str(conversion._environment())


@pytest.mark.full
def test_a_missing_tensor_or_shard_is_refused(tmp_path: Path) -> None:
    folder = small(tmp_path / "model")
    (folder / "pytorch_model.bin").rename(folder / "shard.bin")
    write(folder / "pytorch_model.bin.index.json", {"weight_map": {"a": "shard.bin", "b": "shard.bin"}})
    assert "does not have a tensor that its index names" in refusal(folder, tmp_path / "out")
    write(folder / "pytorch_model.bin.index.json", {"weight_map": {"a": "other.bin"}})
    assert "lacks 'other.bin'" in refusal(folder, tmp_path / "out")
