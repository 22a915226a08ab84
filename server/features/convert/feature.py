"""The convert feature: a command, and that a start converts a model's pickles."""

from server.feature import Command, Feature
from server.settings.flag import HUB_FLAGS

CONVERT = Feature(
    name="convert",
    commands={
        "convert": Command(
            function="server.features.convert.command:convert", flags=(*HUB_FLAGS, "template"), before="health"
        )
    },
    prepares="server.features.convert.start:without_pickles",
    fetches="engine.convert.plan:patterns",
)
