"""The table of models that transformers' automatic classes do not give."""

from engine.model.known_code.table import KNOWN
from engine.transformers.models import OWN


def test_each_architecture_of_ours_has_its_classes() -> None:
    assert set(OWN) >= {code.architecture for code in KNOWN if code.is_ours}
    for architecture, own in OWN.items():
        assert own.config_class.model_type == architecture


def test_known_code_names_what_computes_the_same_or_what_to_serve_instead() -> None:
    assert [code.source for code in KNOWN if bool(code.architecture) == bool(code.instead)] == []
