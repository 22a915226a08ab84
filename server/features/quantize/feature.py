"""The feature of the TensorRT-LLM engine's quantizer: a command."""

from server.feature import Command, Feature
from server.settings.flag import HUB_FLAGS

QUANTIZE = Feature(
    name="quantize",
    commands={
        "quantize": Command(function="server.features.quantize.command:quantize", flags=HUB_FLAGS, before="health")
    },
)
