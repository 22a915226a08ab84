"""GritLM/GritLM-7B, when it embeds (ContextualAI/gritlm: gritlm/gritlm.py, GritLM.encode and pooling;
scripts/modeling_mistral_gritlm.py, MistralModel.forward with is_causal=False)."""

from functools import partial
from typing import Any

from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import decoder
from tests.parity.repositories.own_code.forms import Form

CONFIG: dict[str, Any] = published("GritLM-7B, small")  # with a sliding_window, which is_causal=False has not
FORMS = {
    "GritLM-7B": Form(
        config=CONFIG,
        shapes={**decoder.shapes(CONFIG, prefix="model."), "lm_head.weight": (120, 32)},
        row=partial(decoder.mean, prefix="model."),
        refused=(("attention_window", 3),),
    )
}
