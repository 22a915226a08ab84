"""The adapters of all architectures, and the reading of config.json.

A new architecture needs a file beside this one, and its table here.
"""

import contextlib
from collections.abc import Iterator

from transformers import AutoConfig, PretrainedConfig
from transformers.utils import logging

from engine.fused.adapters import bert, distilbert, gemma, llama, modernbert, mpnet, rotary_bert
from engine.fused.adapters.recipe import Adapter
from engine.machine.failures import one_line
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
    """The adapter of a model_type; None if the fused engine does not know it."""
    return next((table[architecture] for table in _TABLES if architecture in table), None)


def read_config(folder: ModelFolder) -> PretrainedConfig:
    """The library's configuration. Raises ModelError if transformers can't read config.json."""
    try:
        with _quiet():
            config: PretrainedConfig = AutoConfig.from_pretrained(
                folder.path, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # transformers has no exception class for the many ways in which a file can be wrong
        raise ModelError(f"transformers can't read {folder.path / 'config.json'}: {one_line(error)}") from error
    return config


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' warnings out of the log. Errors are raised anyway."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
