"""KaLM-Reranker-V1: a T5Gemma 2 whose encoder reads the document and whose decoder reads the question about it.

Follows the repositories' kalm_reranker_utils.py (KaLM-Embedding/KaLM-Reranker-V1-Nano); Zhao et al., KaLM-Reranker-V1
(arXiv 2606.22807). The encoder's rows are averaged, some neighbours at a time, before the decoder sees them. A sequence
has both: the document, then what the decoder reads from its <bos> on. Texts never have that token, since those of users
become no special tokens; a sequence without it is read by the decoder alone. Layers, masks and angles are the library's
own; its image encoder is left out.

Shapes: B sequences, S tokens of the longest, E and Q those of the longest document and question, C chunks of a
document, D numbers a row.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import T5Gemma2Config
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from transformers.models.t5gemma2.modeling_t5gemma2 import (
    T5Gemma2Decoder,
    T5Gemma2Encoder,
    T5Gemma2LMHead,
    T5Gemma2PreTrainedModel,
)

# Encoder, decoder and head share their tables of tokens.
_TIED = {
    f"decoder.embed_tokens.{name}": f"encoder.text_model.embed_tokens.{name}" for name in ("weight", "eoi_embedding")
}
_TIED_HEAD = {"lm_head.out_proj.weight": "model.encoder.text_model.embed_tokens.weight"}
_OF_IMAGES = [r"\.vision_tower\.", r"\.multi_modal_projector\."]


class KaLMRerankerConfig(T5Gemma2Config):
    """T5Gemma 2's, and how many rows of the encoder are averaged."""

    model_type = "kalm_reranker"
    encoder_chunk_size: int | None = 4


class _KaLM(T5Gemma2PreTrainedModel):
    config: Any
    config_class = KaLMRerankerConfig
    _keys_to_ignore_on_load_unexpected = _OF_IMAGES

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        """Sequences can't be packed: a document and its question have positions of their own."""
        return False


class KaLMRerankerModel(_KaLM):
    """Rows of tokens [B, S, D]: of a document's those of the encoder, of a question's those of the decoder."""

    _tied_weights_keys = _TIED

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        config.encoder.text_config.dtype = config.encoder.dtype  # the library's loading tells it one level down alone
        self.encoder: Any = T5Gemma2Encoder(config.encoder, config.eoi_token_index)
        del self.encoder.vision_tower, self.encoder.multi_modal_projector
        self.decoder = T5Gemma2Decoder(config.decoder, config.eoi_token_index)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """See PreTrainedModel."""
        embedding: nn.Module = self.encoder.text_model.embed_tokens
        return embedding

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        """ids: int64 [B, S]. attention_mask: [B, S], 0 where there is padding at the end; None = there is none."""
        is_token = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        is_document = is_token & ((input_ids == self.config.decoder.bos_token_id) & is_token).cumsum(dim=1).eq(0)
        is_document &= ~is_document.eq(is_token).all(dim=1, keepdim=True)  # without <bos>
        num_before = is_document.sum(dim=1, keepdim=True)
        read, is_read = self._documents(input_ids, is_document, num_before)
        asked, is_asked = self._questions(input_ids, is_token, num_before)
        chunks, is_chunk = _chunks(read, is_read, self.config.encoder_chunk_size or 1)
        answered = self.decoder(
            input_ids=asked,
            attention_mask=is_asked,
            encoder_hidden_states=chunks,
            encoder_attention_mask=is_chunk,
            use_cache=False,
        ).last_hidden_state
        rows = answered.new_zeros((*input_ids.shape, answered.shape[-1]))
        rows[is_document] = read[is_read]
        rows[is_token & ~is_document] = answered[is_asked]
        return BaseModelOutput(last_hidden_state=rows)

    def _documents(self, ids: Tensor, is_document: Tensor, num_before: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's rows [B, E, D], zeros where there is padding; and where there is none [B, E]."""
        length = max(1, int(num_before.max()))
        is_read = is_document[:, :length]
        rows = self.encoder.text_model(input_ids=ids[:, :length], attention_mask=is_read).last_hidden_state
        return rows.masked_fill(~is_read[:, :, None], 0.0), is_read

    def _questions(self, ids: Tensor, is_token: Tensor, num_before: Tensor) -> tuple[Tensor, Tensor]:
        """The ids that the decoder reads [B, Q], each from the first column on; and whether each is one [B, Q]."""
        lengths = is_token.sum(dim=1, keepdim=True) - num_before
        places = torch.arange(int(lengths.max()), device=ids.device)[None]
        index = (places + num_before).clamp(max=ids.shape[1] - 1)
        return ids.gather(1, index), places < lengths


def _chunks(rows: Tensor, is_row: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The means [B, C, D] of `size` rows each, the last of fewer; and whether each is one [B, C]. rows: zeros where
    there is none."""
    missing = -rows.shape[1] % size
    rows = functional.pad(rows, (0, 0, 0, missing)).unflatten(1, (-1, size))
    counts = functional.pad(is_row, (0, missing)).unflatten(1, (-1, size)).sum(dim=2)
    return rows.sum(dim=2) / counts.clamp(min=1)[:, :, None].to(rows.dtype), counts > 0


class KaLMRerankerForCausalLM(_KaLM):
    """Scores of the next token, as T5Gemma 2 makes them."""

    _tied_weights_keys = _TIED_HEAD

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = KaLMRerankerModel(config)
        self.lm_head = T5Gemma2LMHead(config.decoder.hidden_size, config.decoder.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """See PreTrainedModel."""
        layer: nn.Module = self.lm_head.out_proj
        return layer

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        logits_to_keep: int = 0,
    ) -> CausalLMOutput:
        """Scores [B, S, V], or those of the last tokens. inputs_embeds: for a model's stand-in, see LibraryHead."""
        rows = self.model(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds)
        scores = self.lm_head(rows.last_hidden_state[:, -logits_to_keep:])
        cap = self.config.decoder.final_logit_softcapping
        return CausalLMOutput(logits=scores if cap is None else torch.tanh(scores / cap) * cap)
