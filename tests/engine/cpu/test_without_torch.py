"""Where torch, transformers and safetensors are missing, models of BERT's and RoBERTa's kinds are converted and served,
and others are refused in one line."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModel

from tests.engine.engines import difference
from tests.engine.tiny_models import (
    SCORING_SEQUENCES,
    SCORING_TOKENS,
    Reference,
    WholeReference,
    arbitrary,
    save,
    save_whole,
)
from tests.structure.sources import ROOT

SERVE = """
import json, sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "safetensors")))  # so that importing one fails
from pathlib import Path
import numpy as np
from engine.types import ModelError
from tests.engine.engines import load, rows_of
folders, sequences = json.loads(sys.argv[1])
for folder in map(Path, folders):
    try:
        loaded = load("openvino", folder)
        print(json.dumps(rows_of(loaded, [np.array(each, np.int32) for each in sequences]).tolist()))
        loaded.close()
    except ModelError as error:
        print(json.dumps(str(error)))
"""
SEQUENCES = arbitrary((5, 17, 1, 9))


def served(folders: Sequence[Path]) -> list[Any]:
    """The main output of each model for SEQUENCES, or why it is refused."""
    given = json.dumps([list(map(str, folders)), SEQUENCES])
    answer = subprocess.run([sys.executable, "-c", SERVE, given], capture_output=True, text=True, check=False, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


@pytest.mark.holds("Engines on a CPU")
def test_models_are_converted_and_served(tmp_path: Path) -> None:
    made = [
        ("bert", AutoModel),
        ("xlm-roberta", AutoModel),
        ("bert", SCORING_SEQUENCES),
        ("roberta", SCORING_SEQUENCES),
        ("camembert", SCORING_TOKENS),
    ]
    folders = [save_whole(family, tmp_path / str(number), of) for number, (family, of) in enumerate(made)]
    *found, refused = served([*folders, save("distilbert", tmp_path / "other")])
    for rows, folder, (_, purpose) in zip(found, folders, made, strict=True):
        if purpose is AutoModel:
            expected = Reference(folder).pooled(SEQUENCES, "mean")
        else:
            reference = WholeReference(folder, purpose)
            expected = np.concatenate([np.atleast_2d(reference.scores(sequence)) for sequence in SEQUENCES])
        assert difference(np.array(rows, np.float32), expected) <= 1e-5
    assert refused == "this model needs torch and transformers to be converted: pip install 'embedline[server]'"
