"""What the library is shown of a folder that brings code: some versions of it allow that when they load one."""

import json
from pathlib import Path

import pytest

from engine.tensorrt_llm.loading import without_code
from tests.engine.folder_files import change, write
from tests.engine.tensorrt_llm import models, stand_in

pytestmark = pytest.mark.holds("TensorRT-LLM")

CODE = """
from pathlib import Path
from transformers import Qwen3Config
Path(__file__).with_name("was-run").touch()
class OwnConfig(Qwen3Config):
    pass
"""


def test_a_folder_without_code_is_shown_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "config.json", {"model_type": "qwen3"})

    with without_code(tmp_path) as folder:
        assert folder == tmp_path


def test_code_and_what_names_it_are_left_out(tmp_path: Path) -> None:
    config = {"auto_map": {"AutoConfig": "a.B"}, "size": 3, "parts": [{"auto_map": {}, "size": 4}]}
    write(tmp_path / "config.json", config)
    write(tmp_path / "generation_config.json", {"size": 5})
    (tmp_path / "a.py").write_text("raise SystemExit\n")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "1_Pooling").mkdir()

    with without_code(tmp_path) as folder:
        files = {file.name: file for file in folder.iterdir()}
        assert files.keys() == {"config.json", "generation_config.json", "model.safetensors"}
        assert json.loads(files["config.json"].read_text()) == {"size": 3, "parts": [{"size": 4}]}
        assert files["model.safetensors"].resolve() == (tmp_path / "model.safetensors").resolve()

    assert not folder.exists()
    assert json.loads((tmp_path / "config.json").read_text()) == config
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights"


def test_code_that_a_configuration_names_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    model = models.embedding("qwen3", folder, "last")
    change(folder / "config.json", auto_map={"AutoConfig": "configuration_own.OwnConfig"})
    (folder / "configuration_own.py").write_text(CODE)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))

    with stand_in.library():
        engine = stand_in.load(folder, **model.options, trusted_keys=("auto_map",))
        assert stand_in.rows(engine, [[5, 6, 7]]).shape == (1, engine.info.dimensions)

    assert not list(tmp_path.rglob("was-run"))
