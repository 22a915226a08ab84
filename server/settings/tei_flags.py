"""Flags that this server accepts but does not have: of text-embeddings-inference, and one of its own earlier versions.

A flag that changes no answer is accepted, with a warning. One that would change the rows is refused if it can't be
followed. Knows nothing of how flags are read.
"""

import logging
from pathlib import PurePosixPath

from engine.model.model_folder import ModelFolder
from engine.model.tasks import Dense
from engine.types import ModelError
from server.settings.flag import flags_of
from server.settings.settings import Settings

_INSTEAD = {  # flags of the group "Without effect", and what applies instead
    "uds_path": "processes talk over sockets in a folder that the server makes for itself",
    "disable_spans": "no line of the log has spans",
    "otlp_endpoint": "no traces are sent; the request log and /metrics have how long each stage took",
    "otlp_service_name": "no traces are sent",
    "attention": "the fused engine attends by Embedline's own kernel alone",
}

logger = logging.getLogger("embedline.server")


def warn_of_flags_without_effect(settings: Settings) -> None:
    """A line of the log for each that was given; never its value, which may be an address."""
    given = {
        flag.name: flag
        for each in (settings, *settings.models)
        for flag in flags_of(type(each))
        if flag.name in _INSTEAD and getattr(each, flag.name) != flag.default
    }
    for name, flag in given.items():
        logger.warning("%s has no effect here: %s", flag.long_name, _INSTEAD[name])


def check_dense_path(asked: str | None, folder: ModelFolder) -> None:
    """Check TEI's --dense-path: as there, it counts where there is one Dense module. Raises ModelError."""
    if asked is None:
        return
    found = [PurePosixPath(step.folder) for step in folder.steps if isinstance(step, Dense)]
    if len(found) != 1:
        why = f"the model has {len(found)} Dense modules, and they are applied as modules.json has them"
        logger.warning("--dense-path has no effect here: %s", why)
    elif PurePosixPath(asked) != found[0]:
        raise ModelError(
            f"--dense-path names another Dense module than the model's modules.json ({found[0]}): serve a copy of the "
            f"folder whose modules.json names it, or leave the flag out"
        )
