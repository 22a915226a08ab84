"""`--lora`: from the command line, the environment and the file, and names that could mean two things."""

from pathlib import Path
from typing import Any

import pytest

from server.settings.flag import SettingsError
from server.settings.precedence import settings_from
from server.settings.settings import Settings

pytestmark = pytest.mark.holds("Adapters")

TWO = """
[[model]]
model-id = "one"
lora = ["law=/adapters/law", "mail = adapters/mail=2"]

[[model]]
model-id = "two"
lora = ["code=/adapters/code"]
"""


def settings(words: dict[str, Any] | None = None, *, file: str = "", folder: Path, **variables: str) -> Settings:
    path = folder / "embedline.toml"
    path.write_text(file)
    return settings_from(words or {}, variables, config=str(path))


def test_where_they_come_from(tmp_path: Path) -> None:
    two = settings(file=TWO, folder=tmp_path)
    assert two.models[0].loras == (("law", "/adapters/law"), ("mail", "adapters/mail=2"))
    assert two.models[1].loras == (("code", "/adapters/code"),)
    (one,) = settings(EMBEDLINE_LORA="a=b,c=d", folder=tmp_path).models
    assert one.loras == (("a", "b"), ("c", "d"))
    (one,) = settings({"lora": ["e=f"]}, EMBEDLINE_LORA="a=b", file='lora = ["g=h"]', folder=tmp_path).models
    assert one.loras == (("e", "f"),)
    (one,) = settings(LORA="a=b", folder=tmp_path).models  # anybody's variable
    assert one.loras == ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"lora": ["law"]}, "--lora must be NAME=FOLDER, and is 'law'"),
        ({"lora": ["=law"]}, "--lora must be NAME=FOLDER"),
        ({"lora": ["law= "]}, "--lora must be NAME=FOLDER"),
        ({"lora": ["law=a", "law=b"]}, "--lora law is given twice"),
        ({"lora": ["m=a"], "model_id": ["m"]}, "--lora m has the name of a served model; call it something else"),
        (
            {"lora": ["law=a"], "model_id": ["m", "n"]},
            "--lora law would be of two models: each has its own in its [[model]] table",
        ),
        ({"lora": ["x:query=a"]}, "--lora 'x:query=a': a name has no white space and no colon"),
        ({"lora": ["x:=a"]}, "--lora 'x:=a': a name has no"),
        ({"lora": [":x=a"]}, "--lora ':x=a': a name has no"),
        ({"lora": ["a b=a"]}, "--lora 'a b=a': a name has no"),
        ({"lora": ["a\tb=a"]}, "--lora 'a\\tb=a': a name has no"),
        ({"lora": ["law=\0"]}, "--lora must not have a NUL character"),
    ],
)
def test_names_that_could_mean_two_things(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(words, folder=tmp_path)
    assert str(refused.value).startswith(message)


def test_the_name_of_an_adapter_of_another_model(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--lora law would be of two models"):
        settings(file=TWO.replace("code=", "law="), folder=tmp_path)
    with pytest.raises(SettingsError, match="--lora law: it is called one:law, too, which is another's"):
        settings(file=TWO.replace('"two"', '"one:law"'), folder=tmp_path)
    with pytest.raises(SettingsError, match="--lora two has the name of a served model"):
        settings(file=TWO.replace("law=", "two="), folder=tmp_path)
