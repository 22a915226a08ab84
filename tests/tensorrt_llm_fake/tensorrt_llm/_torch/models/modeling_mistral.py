"""Mistral, whose model takes no words of its own and whose layers hand theirs to attention alone."""

from tensorrt_llm._torch.model_config import ModelConfig
from tensorrt_llm.stand_in.decoder import Decoder, Layer


class MistralDecoderLayer(Layer):
    bias = False

    def __init__(self, model_config: ModelConfig, layer_idx: int) -> None:
        super().__init__(model_config, layer_idx)
        self.words["attention_window_size"] = getattr(model_config.pretrained_config, "sliding_window", None)


class MistralModel(Decoder):
    layer = MistralDecoderLayer
