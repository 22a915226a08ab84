"""Models whose Transformer is in a folder of its own, `0_Transformer`, as older versions of sentence-transformers have
saved it: served as if it were in the model's folder, which holds what sentence-transformers makes of it."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from engine.model import identity, model_folder
from engine.model.coverage import Use
from engine.model.detection.needed_files import needed_files
from engine.selftest.sample_ids import of_texts
from engine.transformers import selftest
from engine.transformers.placement import place
from engine.types import OutputKind
from tests.engine.engines import load_options
from tests.engine.folder_files import change, write
from tests.engine.tiny_models import batch
from tests.engine.transformers.loaded import load, raw_rows
from tests.parity.architectures import BGE_M3
from tests.parity.folders import save
from tokenizer_pool.loading import load as load_tokenizer

SUBFOLDER = "0_Transformer"
OF_THE_MODEL = ("modules.json", "config_sentence_transformers.json")
TEXTS = ("w20 W21 w22", "w23 w24 " * 9)


def move_transformer(folder: Path) -> None:
    """Into the subfolder, with its tokenizer and options."""
    modules = json.loads((folder / "modules.json").read_text())
    write(folder / "modules.json", [{**modules[0], "path": SUBFOLDER}, *modules[1:]])
    (folder / SUBFOLDER).mkdir()
    for file in [file for file in folder.iterdir() if file.is_file() and file.name not in OF_THE_MODEL]:
        file.rename(folder / SUBFOLDER / file.name)


def test_rows_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    folder = save("BERT", Use.EMBED, tmp_path / "model")
    write(folder / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": True})
    move_transformer(folder)
    found = model_folder.read(folder)
    assert (found.max_seqlen, found.do_lower_case, found.poolings) == (12, True, ("mean",))
    tokenizer = load_tokenizer(found.weights_folder, do_lower_case=found.do_lower_case)
    tokenizer.enable_truncation(found.max_seqlen)
    ids = [encoding.ids for encoding in tokenizer.encode_batch(list(TEXTS))]
    assert [list(each) for each in of_texts(found, TEXTS, max_seqlen=64)] == ids
    expected = SentenceTransformer(str(folder), device="cpu").encode(list(TEXTS))
    np.testing.assert_allclose(raw_rows(load(folder), ids), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "use"), [("BERT", Use.SPARSE), ("BERT", Use.LATE_INTERACTION), ("BERT", Use.RERANK), (BGE_M3, Use.EMBED)]
)
def test_each_use_gives_the_rows_of_the_model_in_one_folder(tmp_path: Path, name: str, use: Use) -> None:
    folder = save(name, use, tmp_path / "model")
    if use is Use.RERANK:
        kind = "sentence_transformers.base.modules.transformer.Transformer"
        write(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": kind}])
        write(folder / "sentence_bert_config.json", {"transformer_task": "sequence-classification"})
        write(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    sequences = [[20, 21, 22], [23, 4, 24, 25]]
    before, expected = model_folder.read(folder), rows_of(folder, sequences)
    known = identity.identify(before, flags={})
    move_transformer(folder)
    for file in folder.glob("0_Transformer/*_linear.safetensors"):  # bge-m3's own, beside the model
        file.rename(folder / file.name)
    after = model_folder.read(folder)
    assert (after.task, after.outputs, after.heads) == (before.task, before.outputs, before.heads)
    assert identity.identify(after, flags={}) == known
    for output, values in rows_of(folder, sequences).items():
        np.testing.assert_array_equal(values, expected[output])


def rows_of(folder: Path, sequences: list[list[int]]) -> dict[OutputKind, Any]:
    loaded = load(folder)
    loaded.submit(dataclasses.replace(batch(sequences), outputs=loaded.info.outputs))
    _, results = loaded.collect()
    assert isinstance(results, dict), results
    return {kind: result.values for kind, result in results.items()}


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_its_files_are_needed_there(tmp_path: Path, name: str) -> None:
    folder = save("BERT", Use.EMBED, tmp_path / "model")
    move_transformer(folder)
    (folder / SUBFOLDER / name).unlink()
    lacking = [group[0] for group in needed_files(folder) if not any((folder / file).is_file() for file in group)]
    assert lacking == [f"{SUBFOLDER}/{name}"]


def test_an_adapter_there_is_refused(tmp_path: Path) -> None:
    folder = save("BERT", Use.EMBED, tmp_path / "model")
    move_transformer(folder)
    change(folder / SUBFOLDER / "adapter_config.json", peft_type="LORA")
    with pytest.raises(Exception, match=r"holds an adapter \(adapter_config.json\)"):
        model_folder.read(folder)


def test_a_finding_of_the_self_test_is_of_the_weights_in_the_subfolder(tmp_path: Path) -> None:
    folder = save("BERT", Use.EMBED, tmp_path / "model")
    move_transformer(folder)
    found, placement = model_folder.read(folder), place(load_options(folder))
    before = selftest._key(found, placement)
    os.utime(folder / SUBFOLDER / "model.safetensors", (1, 1))
    assert selftest._key(found, placement) != before
