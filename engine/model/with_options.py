"""The model folder as an engine's options want it. Every engine reads its folder here and passes no flag over."""

import dataclasses

from engine.messages import LoadOptions
from engine.model import model_folder
from engine.model.model_folder import ModelFolder


def read_with(options: LoadOptions, *, known_classes: frozenset[str] = frozenset()) -> ModelFolder:
    """The folder, with sequences of at most `options.max_seqlen` tokens. known_classes: see model_folder.read.

    Raises ModelError with one line if the model can't be served.
    """
    folder = model_folder.read(
        options.path,
        pooling=options.pooling,
        task=options.task,
        template=options.template,
        known_classes=known_classes,
        trusted_keys=options.trusted_keys,
    )
    asked = options.max_seqlen or folder.max_seqlen
    return dataclasses.replace(folder, max_seqlen=min(asked, folder.max_seqlen))
