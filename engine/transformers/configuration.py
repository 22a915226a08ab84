"""The library's configuration of a model, from config.json or from what the folder's own code means by it."""

import codecs
import contextlib
from collections.abc import Iterator

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig
from transformers.utils import logging

from engine.machine.failures import one_line
from engine.model.model_folder import ModelFolder
from engine.transformers import models
from engine.types import ModelError


def read_config(folder: ModelFolder) -> PretrainedConfig:
    """The configuration of the class that serves the folder. Raises ModelError if that class can't take it."""
    try:
        with quiet():
            return _config(folder)
    except Exception as error:  # transformers has no exception class for the many ways in which a file can be wrong
        file = folder.weights_folder / "config.json"
        if file.read_bytes().startswith(codecs.BOM_UTF8):
            raise ModelError(
                f"{file} begins with a byte order mark, which transformers does not read: save it without one"
            ) from error
        raise ModelError(f"transformers can't read {file}: {one_line(error)}") from error


def _config(folder: ModelFolder) -> PretrainedConfig:
    own = models.find(folder.architecture)
    config: PretrainedConfig
    if own is not None:
        config = own.config_class.from_dict(folder.config)
    elif folder.is_translated:
        config = CONFIG_MAPPING[folder.architecture].from_dict(folder.config)
    else:
        config = AutoConfig.from_pretrained(folder.weights_folder, local_files_only=True, trust_remote_code=False)
    return config


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' progress bars, warnings and reports out of the log. Errors are raised anyway."""
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
