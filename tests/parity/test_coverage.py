"""The table of architectures: each cell of it is tested."""

from collections.abc import Iterator

from transformers import AutoConfig

from engine.model.coverage import ARCHITECTURES, Use
from tests.parity.architectures import BGE_M3, OWN, STATIC
from tests.parity.folders import CLASSES, tiny_of
from tests.parity.test_parity import cases, engines_of


def test_an_entry_for_tests_belongs_to_a_row() -> None:
    names = [row.name for row in ARCHITECTURES]
    assert len(set(names)) == len(names)
    assert {*OWN, BGE_M3, STATIC} <= set(names)


def test_each_cell_is_a_case() -> None:
    """By each engine that the cell names, and by those that it does not name, which must refuse."""
    shown = [(row, use) for row in ARCHITECTURES for use in Use if row.engines(use)]
    tested = [(row.name, use, engine) for row, use, engine in cases()]
    assert sorted(tested) == sorted((row.name, use, engine) for row, use in shown for engine in engines_of(row))
    assert all(("fused" in row.engines(use)) == ("fused" in engines_of(row)) for row, use in shown)


def without_class() -> Iterator[tuple[str, Use]]:
    """Cells that are empty because the library has no class for them, or its class is not what anybody serves."""
    for row in ARCHITECTURES:
        for use in set(Use) - set(row.uses) - {Use.LATE_INTERACTION, Use.GENERATIVE_RERANK}:
            if row.name not in (BGE_M3, STATIC, "EmbeddingGemma"):
                yield row.name, use


def test_what_the_library_has_a_class_for_is_in_the_table() -> None:
    for name, use in without_class():
        kind = type(AutoConfig.for_model(tiny_of(name).model_type))
        assert kind not in CLASSES[use]._model_mapping, (name, use)
