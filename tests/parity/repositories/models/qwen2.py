"""gte-Qwen2, stella, KaLM and QZhou: Qwen2 with code of its own, mostly for layers that see both ways."""

from collections.abc import Mapping
from typing import Any

from tests.parity.repositories import vocabularies
from tests.parity.repositories.configs import published
from tests.parity.repositories.facts import Ids, Refused, Repository
from tests.parity.repositories.forms import embedding
from tests.parity.repositories.models.decoders import SEARCH
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_CODE = {
    "AutoModel": "modeling_qwen.Qwen2Model",
    "AutoModelForCausalLM": "modeling_qwen.Qwen2ForCausalLM",
    "AutoModelForSequenceClassification": "modeling_qwen.Qwen2ForSequenceClassification",
}
# as published of stella_en_1.5B_v5, but for is_causal
QWEN2_FAMILY: dict[str, Any] = published("gte-Qwen2-7B-instruct")
_SIZES_7B = {
    **{"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4},
    "max_window_layers": 28,
}
_QWEN_ENDS = Ids(of="gte-Qwen2-1.5B-instruct", first="", last="<|endoftext|>", source=Source.VLLM_QWEN)
_QWEN_TOKENIZER = {
    "auto_map": {"AutoTokenizer": ["tokenization_qwen.Qwen2Tokenizer", "tokenization_qwen.Qwen2TokenizerFast"]},
    "add_eos_token": True,
}
_STELLA = {key: value for key, value in QWEN2_FAMILY.items() if key != "is_causal"}
_KALM = {  # in the sizes of Qwen2-0.5B
    **QWEN2_FAMILY,
    "architectures": ["Qwen2Model"],
    "auto_map": {"AutoModel": "modeling.Qwen2Model"},
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "vocab_size": 151936,
}
_QZHOU = {  # in the sizes of Qwen2.5-7B
    **_STELLA,
    "architectures": ["QZhouModel"],
    "auto_map": {"AutoModel": "modeling_qzhou.QZhouModel"},
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}
_QZHOU_LIBRARY = {
    "hidden_size": 40,
    "intermediate_size": 52,
    "is_causal": False,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": vocabularies.SIZE,
}
_DOUBT = (
    "vLLM's docs say that its code sees earlier tokens alone, whatever `is_causal` says; text-embeddings-inference "
    "says that it was trained to see all"
)


def _gte(size: str, sizes: Mapping[str, int], rows: tuple[Source, ...], doubt: str = "") -> Repository:
    return embedding(
        f"Alibaba-NLP/gte-Qwen2-{size}-instruct",
        {**QWEN2_FAMILY, **sizes},
        Words.QWEN,
        "last",
        length=32768,
        rows=rows,
        ids=_QWEN_ENDS,
        prompts={"query": SEARCH + " "},
        flags=_QWEN_TOKENIZER,
        doubt=doubt,
    )


REPOSITORIES: tuple[Repository, ...] = (
    _gte("1.5B", {}, (), _DOUBT),
    _gte("7B", _SIZES_7B, (Source.TEI_QWEN, Source.MTEB)),
    embedding(
        "NovaSearch/stella_en_1.5B_v5",
        _STELLA,
        Words.QWEN,
        "mean",
        length=512,
        is_normalized=False,
        dense=((1024, True, "torch.nn.modules.linear.Identity"),),
        rows=(Source.STELLA,),
        ids=_QWEN_ENDS,
        flags=_QWEN_TOKENIZER,
        refused=Refused(
            says="has no 'is_causal'",
            reason="`config.json` has no `is_causal`, and versions of its own code differ without it",
            instead="add the `is_causal` that your copy of the code has",
        ),
    ),
    embedding(
        "KaLM-Embedding/KaLM-embedding-multilingual-mini-instruct-v2.5",
        _KALM,
        Words.QWEN,
        "mean",
        length=512,
        is_normalized=False,
        rows=(Source.KALM, Source.KALM_NOTES),
    ),
    embedding(
        "Kingsoft-LLM/QZhou-Embedding",
        _QZHOU,
        Words.QWEN,
        "mean",
        length=8192,
        is_normalized=False,
        rows=(Source.QZHOU, Source.MTEB),
        library=_QZHOU_LIBRARY,
    ),
)
