"""What goes wrong while the FP8 copy is made is one line for the operator, whatever it is."""

from pathlib import Path

import pytest

from engine.fp8_copy import with_copy
from engine.tensorrt_llm import choices
from engine.types import ModelError
from tests.engine.load_options import load_options


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("a library\nfails"), "^the FP8 copy of the model can't be made: RuntimeError: a library fails$"),
        (ModelError("no cache"), "^no cache$"),
    ],
)
def test_an_error_is_one_line(error: Exception, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(choices, "weights_to_quantize", fail)
    with pytest.raises(ModelError, match=message):
        with_copy("tensorrt-llm", load_options(tmp_path, quantization="fp8"))


def test_other_engines_get_their_options_as_they_are(tmp_path: Path) -> None:
    options = load_options(tmp_path, quantization="fp8")
    assert with_copy("fused", options) is options
