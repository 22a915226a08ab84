"""Which architectures the fused engine knows, and how it reads their config.json.

A new architecture is a file beside this one and its table here.
"""

import contextlib
from collections.abc import Iterator

from transformers import AutoConfig, PretrainedConfig
from transformers.utils import logging

from engine.failures import one_line
from engine.fused.adapters import bert, distilbert, gemma, llama, modernbert, mpnet, rotary_bert
from engine.fused.adapters.recipe import Adapter
from engine.model.model_folder import ModelFolder
from engine.types import ModelError

_TABLES = (
    bert.ADAPTERS,
    distilbert.ADAPTERS,
    mpnet.ADAPTERS,
    rotary_bert.ADAPTERS,
    llama.ADAPTERS,
    gemma.ADAPTERS,
    modernbert.ADAPTERS,
)


def find(architecture: str) -> Adapter | None:
    """By model_type of config.json; None where another engine must run it."""
    return next((table[architecture] for table in _TABLES if architecture in table), None)


def read_config(folder: ModelFolder) -> PretrainedConfig:
    """Raises ModelError where transformers can't read config.json."""
    try:
        with _quiet():
            config: PretrainedConfig = AutoConfig.from_pretrained(
                folder.path, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # a file can be wrong in more ways than transformers has exceptions for
        raise ModelError(f"transformers can't read {folder.path / 'config.json'}: {one_line(error)}") from error
    return config


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What matters is raised."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
