"""Rerankers that came after cross-encoders of one layer: heads for each layer, pooled rows, answers, encoder-decoders.

Templates and scores are said by authors; files of zerank-1, ctxl-rerank-v2 and the KURE rerankers were not seen.
"""

from collections.abc import Mapping
from typing import Any

from engine.model.tasks import Activation, Task
from tests.parity.repositories.facts import Head, Refused, Repository, Served
from tests.parity.repositories.forms import cross_encoder, plain
from tests.parity.repositories.models.decoders import GEMMA_IDS, QWEN3
from tests.parity.repositories.models.families import MODERNBERT, published
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_OWN_CODE = "tests/parity/repositories/own_code/test_own_code.py"
_MODULES = "tests/parity/repositories/test_cross_encoder_modules.py"
_KALM = "tests/parity/repositories/own_code/test_kalm.py"
_IDENTITY = "torch.nn.modules.linear.Identity"
_UNSEEN = "its files were not seen"

_LIGHTWEIGHT: dict[str, Any] = {
    **published("bge-reranker-v2.5-gemma2-lightweight, small"),
    **{"hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16},
    **{"num_key_value_heads": 8, "head_dim": 256, "query_pre_attn_scalar": 256, "vocab_size": 256000},
    **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "start_layer": 8},
    **{"sliding_window": 4096, "sliding_window_size": 4096},
}
_MINICPM: dict[str, Any] = {
    **published("bge-reranker-v2-minicpm-layerwise, small"),
    **{"hidden_size": 2304, "intermediate_size": 5760, "num_hidden_layers": 40, "num_attention_heads": 36},
    **{"num_key_value_heads": 36, "vocab_size": 122753, "start_layer": 8},
}


def _scored(name: str, family: Mapping[str, Any], *, length: int, **more: Any) -> Repository:
    served = Served(task=Task.RERANK, head=Head.SCORES, size=1, length=length, activation=Activation.SIGMOID)
    return plain(name, family, served, model_max_length=length, held_by=_OWN_CODE, **more)


_BGE: tuple[Repository, ...] = (
    _scored(
        "BAAI/bge-reranker-v2.5-gemma2-lightweight",
        _LIGHTWEIGHT,
        length=8192,
        words=Words.GEMMA_FIRST,
        rows=(Source.FLAG_LIGHTWEIGHT,),
        ids=GEMMA_IDS,
        flags={"add_bos_token": True, "add_eos_token": False},
        also="all layers, no tokens compressed",
    ),
    _scored(
        "BAAI/bge-reranker-v2-minicpm-layerwise",
        _MINICPM,
        length=2048,
        words=Words.LLAMA,
        rows=(Source.FLAG_LAYERWISE,),
        flags={"add_bos_token": True, "add_eos_token": False},
        also="all layers",
    ),
)

_LIBRARY = "sentence_transformers."
_KINDS = {
    "Transformer": f"{_LIBRARY}base.modules.transformer.Transformer",
    "Pooling": f"{_LIBRARY}sentence_transformer.modules.pooling.Pooling",
    "Dense": f"{_LIBRARY}base.modules.dense.Dense",
    "LayerNorm": f"{_LIBRARY}sentence_transformer.modules.layer_norm.LayerNorm",
    "LogitScore": f"{_LIBRARY}cross_encoder.modules.logit_score.LogitScore",
}
_CROSS_ENCODER: dict[str, Any] = {"model_type": "CrossEncoder", "activation_fn": _IDENTITY, "prompts": {}}
_TEXT: dict[str, Any] = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}


def _modules(*kinds: str) -> list[dict[str, Any]]:
    return [
        {"idx": place, "name": str(place), "path": f"{place}_{kind}" if place else "", "type": _KINDS[kind]}
        for place, kind in enumerate(kinds)
    ]


def _ettin(size: str, hidden: int, inner: int, layers: int, heads: int) -> Repository:
    """Its pooled row goes through a Dense and a LayerNorm; the last Dense gives what its teacher gave."""
    activation = "torch.nn.modules.activation.GELU"
    first = {"in_features": hidden, "out_features": hidden, "bias": False, "activation_function": activation}
    last = {"in_features": hidden, "out_features": 1, "bias": True, "activation_function": _IDENTITY}
    files = {
        "modules.json": _modules("Transformer", "Pooling", "Dense", "LayerNorm", "Dense"),
        "sentence_bert_config.json": {
            **{"transformer_task": "feature-extraction", "modality_config": _TEXT},
            "module_output_name": "token_embeddings",
        },
        "1_Pooling/config.json": {"embedding_dimension": hidden, "pooling_mode": "cls", "include_prompt": True},
        "2_Dense/config.json": first,
        "3_LayerNorm/config.json": {"dimension": hidden},
        "4_Dense/config.json": {**last, "module_output_name": "scores"},
        "config_sentence_transformers.json": _CROSS_ENCODER,
    }
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    return plain(
        f"cross-encoder/ettin-reranker-{size}-v1",
        {**MODERNBERT, **sizes, "num_attention_heads": heads, "max_position_embeddings": 7999},
        Served(task=Task.RERANK, head=Head.SCORES, size=1, length=7999),
        words=Words.MODERN,
        rows=(Source.ETTIN,),
        model_max_length=7999,
        others=files,
        held_by=_MODULES,
    )


_ETTIN: tuple[Repository, ...] = (
    _ettin("17m", 256, 384, 7, 4),
    _ettin("32m", 384, 576, 10, 6),
    _ettin("68m", 512, 768, 19, 8),
    _ettin("150m", 768, 1152, 22, 12),
    _ettin("400m", 1024, 2624, 28, 16),
    _ettin("1b", 1792, 3840, 28, 28),
)
_PAIRS: tuple[Repository, ...] = (
    cross_encoder(
        "nlpai-lab/KURE-Reranker-nano",
        {**MODERNBERT, "vocab_size": 50000, "architectures": ["ModernBertForSequenceClassification"]},
        words=Words.MODERN,
        length=8192,
        activation=Activation.IDENTITY,
        rows=(Source.KURE, Source.MTEB),
        sentence_transformers={"version": "5.4.0", "activation_fn": _IDENTITY},
        pad_token_id=0,
    ),
    cross_encoder(
        "sshalimov04/ru-reranker-edge-150m",
        {**MODERNBERT, "architectures": ["ModernBertForSequenceClassification"]},
        words=Words.MODERN,
        length=8192,
        rows=(),
        doubt=_UNSEEN,
    ),
)

_QWEN3: dict[str, Any] = {**QWEN3, "max_position_embeddings": 40960, "vocab_size": 151936, "eos_token_id": 151645}
_2B: dict[str, Any] = {"hidden_size": 2048, "intermediate_size": 6144}
_DEEP: dict[str, Any] = {"num_hidden_layers": 36, "num_attention_heads": 32}
_4B: dict[str, Any] = {"hidden_size": 2560, "intermediate_size": 9728, **_DEEP}
# A pair in turns, as zerank-2's card has it; its file was not seen, nor was that of KURE's reranker.
_TURNS = {
    "chat_template": "{% for m in messages %}<|im_start|>{{ 'system' if m.role == 'query' else 'user' }}\n"
    "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
}


def _answers(
    name: str,
    sizes: Mapping[str, Any],
    answers: tuple[str, str],
    rows: tuple[Source, ...],
    *,
    length: int = 40960,
    **more: Any,
) -> Repository:
    """Raw logits of an answer after the last token."""
    served = Served(task=Task.RERANK, head=Head.ANSWER, size=1, length=length)
    known: dict[str, Any] = {"words": Words.QWEN, "model_max_length": length, "answers": answers, **more}
    return plain(name, {**_QWEN3, **sizes}, served, rows=rows, **known)


def _logit_score(yes_id: int, no_id: int | None) -> dict[str, Any]:
    """As sentence-transformers 5.4 saves a cross-encoder on a generative model."""
    return {
        "modules.json": _modules("Transformer", "LogitScore"),
        "sentence_bert_config.json": {
            "transformer_task": "text-generation",
            "modality_config": {"message": {"method": "forward", "method_output_name": "logits", "format": "flat"}},
            "module_output_name": "causal_logits",
            "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
        },
        "1_LogitScore/config.json": {"true_token_id": yes_id, "false_token_id": no_id},
        "config_sentence_transformers.json": _CROSS_ENCODER,
    }


_ZERANK_CODE: dict[str, Any] = {"auto_map": {"AutoConfig": "modeling_zeranker.ZEConfig"}}
_ZERANK = (Source.ZERANK, Source.MTEB)
_GENERATIVE: tuple[Repository, ...] = (
    _answers("zeroentropy/zerank-1", _4B, ("Yes", ""), _ZERANK, **_ZERANK_CODE),
    _answers("zeroentropy/zerank-1-small", _2B, ("Yes", ""), _ZERANK, **_ZERANK_CODE),
    _answers("zeroentropy/zerank-2", _4B, ("Yes", ""), _ZERANK, others=_logit_score(9454, None), flags=_TURNS),
    *(
        _answers(f"ContextualAI/ctxl-rerank-v2-instruct-multilingual-{size}", sizes, ("!", ""), (Source.CARD,))
        for size, sizes in (("1b", {}), ("2b", _2B), ("6b", _4B))
    ),
    _answers(
        "nlpai-lab/KURE-Reranker-base",
        _2B,
        ("yes", "no"),
        (Source.KURE, Source.MTEB),
        length=8192,
        others=_logit_score(9693, 2152),
        flags=_TURNS,
    ),
)


def _kalm(size: str, hidden: int, inner: int, layers: int, heads: int, *, window: int = 512) -> Repository:
    """In the words of T5Gemma 2, whose encoder's text model and decoder are alike."""
    types = ["full_attention" if (number + 1) % 6 == 0 else "sliding_attention" for number in range(layers)]
    sizes: dict[str, Any] = {
        **{"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "layer_types": types},
        **{"num_attention_heads": heads, "num_key_value_heads": 4 if heads > 4 else 1},
        **{"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": window, "_sliding_window_pattern": 6},
        **{"vocab_size": 262144, "max_position_embeddings": 131072},
    }
    config = published("KaLM-Reranker-V1-Nano, small")
    encoder = {**config["encoder"], "text_config": {**config["encoder"]["text_config"], **sizes}}
    decoder = {**config["decoder"], **sizes}
    return plain(
        f"KaLM-Embedding/KaLM-Reranker-V1-{size}",
        {**config, "vocab_size": 262144, "encoder": encoder, "decoder": decoder},
        Served(task=Task.RERANK, head=Head.ANSWER, size=1, length=131072, activation=Activation.SIGMOID),
        words=Words.GEMMA_FIRST,
        rows=(Source.KALM_RERANKER, Source.MTEB),
        model_max_length=131072,
        flags={"add_bos_token": True, "add_eos_token": False},
        others={
            "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "kalm_cross_encoder.KaLMCrossEncoderModule"}],
            "kalm_cross_encoder_config.json": {
                **{"query_max_length": 512, "document_max_length": 1024, "encoder_chunk_size": 4}
            },
            "config_sentence_transformers.json": {
                **_CROSS_ENCODER,
                "activation_fn": "torch.nn.modules.activation.Sigmoid",
            },
        },
        held_by=_KALM,
    )


_ENCODER_DECODERS: tuple[Repository, ...] = (
    _kalm("Nano", 640, 2048, 18, 4),
    _kalm("Small", 1152, 6912, 26, 4),
    _kalm("Large", 2560, 10240, 34, 8, window=1024),
)

_LISTWISE: dict[str, Any] = {
    **{**_QWEN3, "architectures": ["JinaForRanking"], "auto_map": {"AutoModel": "modeling.JinaForRanking"}},
    **{"max_position_embeddings": 131072, "transformers_version": "4.55.2", "use_cache": False},
}
_REFUSED: tuple[Repository, ...] = tuple(
    plain(
        f"jinaai/jina-reranker-{version}",
        _LISTWISE,
        Refused(
            says="JinaForRanking: a listwise reranker, which is not supported",
            reason="it scores all documents of a query in one sequence",
            instead="a reranker of pairs, such as `jinaai/jina-reranker-v2-base-multilingual` or "
            "`Qwen/Qwen3-Reranker-0.6B`",
        ),
        words=Words.QWEN,
        rows=(),
        model_max_length=131072,
    )
    for version in ("v3", "v3.5")
)

REPOSITORIES: tuple[Repository, ...] = (*_BGE, *_ETTIN, *_PAIRS, *_GENERATIVE, *_ENCODER_DECODERS, *_REFUSED)
