"""The verify feature: a command."""

from server.feature import Command, Feature
from server.settings.flag import HUB_FLAGS

_CHANGE_ROWS = (
    "template",
    "pooling",
    "max_input_length",
    "engine",
    "devices",
    "dtype",
    "quantization",
    "tensorrt_llm_model_class",
    "convert",
)

VERIFY = Feature(
    name="verify",
    commands={
        "verify": Command(
            function="server.features.verify.command:verify",
            flags=(*HUB_FLAGS, *_CHANGE_ROWS, "compiled_cache"),
            before="compile",
        )
    },
)
