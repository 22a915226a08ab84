"""What versions of the library make of the names of modules that are left plain."""

from pathlib import Path

import pytest

from engine.tensorrt_llm.planning.checkpoint import classify
from engine.tensorrt_llm.planning.quantization import BLOCKS, ExcludedModules
from engine.types import ModelError
from tests.engine.tensorrt_llm.quantized_models import BLOCKWISE, quantized, refused, write


def test_layers_left_plain_are_as_the_files_say(tmp_path: Path) -> None:
    tensors = quantized(BLOCKS, but="layers.1.mlp", scale="weight_scale_inv")
    names = [f"model.layers.1.mlp.{name}_proj" for name in ("gate", "up", "down")]
    assert classify(write(tmp_path, tensors, {**BLOCKWISE, "modules_to_not_convert": names})).algorithm == BLOCKS
    message = refused(write(tmp_path, tensors, {**BLOCKWISE, "modules_to_not_convert": names[:2]}))
    assert "takes the tensor 'layers.1.mlp.down_proj.weight' for a quantized one, and it is stored plain" in message
    message = refused(write(tmp_path, tensors, {**BLOCKWISE, "modules_to_not_convert": [*names, "model.layers.0.*"]}))
    assert "may take the tensor 'layers.0.self_attn.k_proj.weight' for a plain one" in message
    # Older versions look at no parents, newer ones do.
    assert "for a quantized one" in refused(
        write(tmp_path, tensors, {**BLOCKWISE, "modules_to_not_convert": ["model.layers.1.mlp"]})
    )


@pytest.mark.parametrize(
    ("patterns", "certainly", "maybe"),
    [
        ([], False, False),
        (["lm_head"], False, False),
        (["a.b.c"], True, True),
        (["a.*"], True, True),
        (["a.b"], False, True),
        (["a.b.c.*"], False, True),
        (["re:.*b\\.c$"], False, True),
        (["re:^a.b"], False, True),
        (["re:.*\\.b"], False, True),
        (["re:b"], False, False),
    ],
)
def test_what_versions_make_of_names(patterns: list[str], certainly: bool, maybe: bool) -> None:
    excluded = ExcludedModules(patterns)
    assert (excluded.certainly(["a.b.c"]), excluded.maybe(["a.b.c"])) == (certainly, maybe)


@pytest.mark.parametrize("pattern", ["re:(a*)*b", "re:[ab]", "re:a+", "re:a|b", "re:\\d"])
def test_regular_expressions_of_strangers_are_not_run(pattern: str) -> None:
    with pytest.raises(ModelError, match="regular expression in the model's files"):
        ExcludedModules([pattern])
