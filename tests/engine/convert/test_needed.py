"""What a start must convert before it can read a model's folder, and what it fetches from the hub for that."""

from pathlib import Path

import pytest

from engine.convert.plan import needed, patterns
from tests.engine.folder_files import write

MODULES = [
    {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
]
HEADS = ("sparse_linear.pt", "colbert_linear.pt")


def folder_with(folder: Path, *names: str, modules: bool = False) -> Path:
    for name in ("config.json", *names):
        write(folder / name, {})
    if modules:
        write(folder / "modules.json", MODULES)
    return folder


@pytest.mark.parametrize(
    ("names", "modules", "stems"),
    [
        (("pytorch_model.bin",), False, ["model"]),
        (("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"), False, ["model"]),
        (
            ("pytorch_model.bin", *HEADS, "training_args.bin", "own.pt"),
            False,
            ["model", "colbert_linear", "sparse_linear"],
        ),
        (("pytorch_model.bin", "2_Dense/pytorch_model.bin"), True, ["model", "2_Dense/model"]),
        (("model.safetensors", "2_Dense/pytorch_model.bin"), True, ["2_Dense/model"]),
        (("model.safetensors", "pytorch_model.bin.index.json", "sparse_linear.pt"), False, ["sparse_linear"]),
    ],
)
def test_what_a_start_needs(names: tuple[str, ...], modules: bool, stems: list[str], tmp_path: Path) -> None:
    planned = needed(folder_with(tmp_path, *names, modules=modules))
    assert planned is not None
    assert [target.stem for target in planned.targets] == stems
    assert not planned.copied.keys() & {"tf_model.h5", "flax_model.msgpack", "rust_model.ot", "own.pt"}


@pytest.mark.parametrize(
    "names",
    [
        ("model.safetensors", "pytorch_model.bin", "own.pt", "elsewhere/pytorch_model.bin"),
        ("model.safetensors.index.json", "pytorch_model.bin"),
        ("model.safetensors", "sparse_linear.pt", "sparse_linear.safetensors"),
        (),
        ("tf_model.h5",),
    ],
)
def test_what_it_can_read_already_or_never(names: tuple[str, ...], tmp_path: Path) -> None:
    assert needed(folder_with(tmp_path, *names)) is None


def test_what_is_fetched(tmp_path: Path) -> None:
    assert patterns(folder_with(tmp_path / "plain")) == ("pytorch_model*.bin", *HEADS)
    whole = folder_with(tmp_path / "whole", "model.safetensors", "2_Dense/model.safetensors", modules=True)
    assert patterns(whole) == ()
    dense = folder_with(tmp_path / "dense", "model.safetensors", modules=True)
    assert patterns(dense) == ("2_Dense/pytorch_model*.bin",)


def test_what_is_fetched_for_modules_of_every_kind(tmp_path: Path) -> None:
    """A table of static embeddings, and what is behind a Router."""
    kind = "sentence_transformers.models."
    write(tmp_path / "modules.json", [{"idx": 0, "path": "0_Static", "type": f"{kind}StaticEmbedding"}])
    assert patterns(tmp_path) == ("0_Static/pytorch_model*.bin",)
    routed = {"document_0_Transformer": f"{kind}Transformer", "document_1_Pooling": f"{kind}Pooling"}
    write(tmp_path / "modules.json", [{"idx": 0, "path": "", "type": f"{kind}Router"}])
    write(tmp_path / "router_config.json", {"types": routed, "structure": {"document": [*routed]}, "parameters": {}})
    assert patterns(tmp_path) == ("document_0_Transformer/pytorch_model*.bin",)
    folder_with(tmp_path, "document_0_Transformer/pytorch_model.bin")
    planned = needed(tmp_path)
    assert planned is not None
    assert [target.stem for target in planned.targets] == ["document_0_Transformer/model"]
