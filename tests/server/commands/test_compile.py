"""`embedline compile`: the folder that it makes is taken by a start, and what is wrong is one line."""

from pathlib import Path

import pytest

from engine.cpu import loading
from engine.types import ModelError
from server.commands.model_copies import compile_model
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.model_plan import find_cuda, plan_model
from tests.engine.cpu.engines import load
from tests.engine.model.detection import shapes
from tests.engine.tiny_models import save


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = save("bert", tmp_path / "model")
    shapes.tokenizer(folder)
    return folder


def asked(folder: Path, **others: str) -> Settings:
    return Settings(models=(ModelSettings(model_id=str(folder), **others),))  # type: ignore[arg-type]


def test_a_start_takes_what_it_makes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert compile_model(asked(model, engine="fake", dtype="bfloat16"), str(out)) == 0
    first, key, *notes = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{out}: ")
    assert len(key.removeprefix("  key ")) == 64
    assert notes[0].startswith("  the self-test's rows equal those that numpy computes")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]

    monkeypatch.setattr(loading, "convert", None)
    load(model, compiled_model=str(out)).close()
    with pytest.raises(ModelError, match="is not an empty folder"):
        compile_model(asked(model), str(out))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"engine": "transformers"}, "for the openvino engine on the CPU, and this model gets transformers on cpu"),
        ({"compiled_model": "/not/there"}, "--compiled-model is not a folder: /not/there"),
    ],
)
def test_a_flag_that_can_have_no_effect_is_refused(flags: dict[str, str], told: str, model: Path) -> None:
    settings = asked(model, **{"devices": "cpu", "compiled_model": str(model), **flags})
    with pytest.raises(SettingsError, match=told):
        plan_model(settings.models[0], settings, cuda=lambda: find_cuda(settings))
