"""The backfill feature: a command."""

from server.feature import Command, Feature
from server.settings.flag import HUB_FLAGS

_OF_ENGINE = ("compiled_cache", "cpu_threads", "engine_python", "tokenization_workers", "batch_managers")

BACKFILL = Feature(
    name="backfill",
    commands={
        "backfill": Command(
            function="server.features.backfill.command:backfill", flags=(*HUB_FLAGS, *_OF_ENGINE), is_of_model=True
        )
    },
)
