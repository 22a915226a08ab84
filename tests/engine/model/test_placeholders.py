"""Files of which a tool has left only a placeholder: each is named, with the command that fetches it."""

import itertools
import os
import shutil
from pathlib import Path

import pytest

from engine.convert import plan
from engine.model import model_folder
from engine.model.coverage import Use
from engine.model.weights import weights_of
from engine.store.model_source import find_here
from engine.types import ModelError
from tests.engine.model.sentence_folder import refusal
from tests.parity.folders import save
from tests.tiers import full_but
from tokenizer_pool.cl100k import VocabularyError
from tokenizer_pool.cl100k import read as read_vocabulary
from tokenizer_pool.loading import load
from wire.tokenizer_files import TokenizerError

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0\nsize 90868376\n"
ANNEX = ".git/annex/objects/8Q/kX/SHA256E-s90868376--4d7a21.safetensors/SHA256E-s90868376--4d7a21.safetensors"
LFS_TOLD = "git lfs pull"
TOLD = {
    **{"lfs": LFS_TOLD, "dvc": "dvc pull"},
    **dict.fromkeys(("annex link", "annex pointer", "annex without links"), "git annex get"),
}
READ = (
    *("config.json", "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
    *("model.safetensors", "1_Dense/config.json", "1_Dense/model.safetensors", "sparse_linear.pt"),
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("BERT", Use.LATE_INTERACTION, tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A model of two modules with weights."""
    return shutil.copytree(saved, tmp_path / "model")


def leave_placeholder(file: Path, kind: str) -> None:
    file.unlink(missing_ok=True)
    match kind:
        case "lfs":
            file.write_text(LFS)
        case "annex link":
            file.symlink_to(os.path.join("..", ANNEX))
        case "annex pointer":
            file.write_text("/annex/objects/SHA256E-s90868376--4d7a21.safetensors\n")
        case "annex without links":
            file.write_text(f"../{ANNEX}")
        case "dvc":
            file.with_name(f"{file.name}.dvc").write_text(f"outs:\n- md5: 0\n  path: {file.name}\n")


@pytest.mark.parametrize(
    ("name", "kind"),
    full_but(
        [*((name, "lfs") for name in READ), *itertools.product(("config.json", "model.safetensors"), TOLD)],
        itertools.product(READ, TOLD),
    ),
)
def test_each_file_that_is_read(folder: Path, name: str, kind: str) -> None:
    leave_placeholder(folder / name, kind)
    message = refusal(folder)
    assert message.startswith(f"{folder / name} is ")
    assert TOLD[kind] in message


def test_a_shard(folder: Path) -> None:
    shard = "model-00001-of-00001.safetensors"
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"a": "{shard}"}}}}')
    leave_placeholder(folder / shard, "lfs")
    assert refusal(folder).startswith(f"{folder / shard} is a pointer of Git LFS")


def test_a_folder_that_dvc_keeps_as_a_whole(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "1_Dense").rename(tmp_path / "kept")
    leave_placeholder(folder / "1_Dense", "dvc")
    assert refusal(folder).startswith(f"{folder / '1_Dense'} is not here, and 1_Dense.dvc stands in for it")
    monkeypatch.chdir(tmp_path)
    leave_placeholder(Path("elsewhere"), "dvc")
    with pytest.raises(ModelError, match=r"elsewhere is not here, and elsewhere\.dvc stands in for it; dvc pull"):
        find_here("elsewhere")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "onnx/model.onnx", "vocab.txt", "tf_model.h5"])
def test_what_is_not_read_may_have_one(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    leave_placeholder(folder / name, "lfs")
    model_folder.read(folder)


def test_weights_that_are_not_read_may_have_one(folder: Path) -> None:
    leave_placeholder(folder / "model.safetensors", "lfs")
    model_folder.read(folder, needs_weights=False)
    with pytest.raises(ModelError, match=LFS_TOLD):
        weights_of(folder)


def test_pickles_are_not_called_dangerous(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    leave_placeholder(folder / "pytorch_model.bin", "lfs")
    with pytest.raises(ModelError, match=f"pytorch_model.bin is a pointer of Git LFS; {LFS_TOLD}"):
        plan.plan(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer(folder: Path, name: str) -> None:
    leave_placeholder(folder / name, "lfs")
    with pytest.raises(TokenizerError, match=f"{name} is a pointer of Git LFS; {LFS_TOLD}"):
        load(folder)


@pytest.mark.parametrize("name", ["modules.json", "sentence_bert_config.json", "chat_template.jinja"])
def test_a_link_to_nothing_is_no_absence(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("gone.json")
    assert f"{folder / name} is a link to nothing" in refusal(folder)


def test_a_vocabulary(tmp_path: Path) -> None:
    leave_placeholder(tmp_path / "cl100k_base.tiktoken", "lfs")
    with pytest.raises(VocabularyError, match=LFS_TOLD):
        read_vocabulary(tmp_path / "cl100k_base.tiktoken")
