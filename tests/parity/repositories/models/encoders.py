"""Decoders that see both ways and T5's encoder, read anew in own_code; config.json is theirs."""

from functools import partial
from typing import Any

from engine.model.tasks import Activation, Task
from tests.parity.repositories.facts import Head, Ids, Repository, Served
from tests.parity.repositories.forms import IDENTITY, embedding, plain
from tests.parity.repositories.own_code import gritlm, llama_bidirec, nv_embed, t5
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_READ = "tests/parity/repositories/own_code/test_own_code.py"
_MISTRAL: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}
_LLAMA_1B: dict[str, Any] = {
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "rope_scaling": {**llama_bidirec.CONFIG["rope_scaling"], "original_max_position_embeddings": 8192},
    "vocab_size": 128256,
}
_NV_EMBED: dict[str, Any] = {
    "hidden_size": 4096,
    "latent_attention_config": {"model_type": "latent_attention"},  # the published file says no size
    "text_config": {**nv_embed.TEXT, **_MISTRAL},
}
_T5_BASE: dict[str, Any] = {
    "d_ff": 3072,
    "d_kv": 64,
    "d_model": 768,
    "num_decoder_layers": 12,
    "num_heads": 12,
    "num_layers": 12,
    "relative_attention_num_buckets": 32,
    "vocab_size": 32128,
}
_T5_LARGE = {**_T5_BASE, "d_ff": 4096, "d_model": 1024, "num_heads": 16, "num_layers": 24, "num_decoder_layers": 24}
_DENSE = ((768, False, IDENTITY),)
_DOING = "How are you doing?"
_T5_IDS = Ids(of="t5-small", text=_DOING, ids=(571, 33, 25, 692, 58, 1), first="", last="</s>", source=Source.JS_T5)

T5 = tuple(
    embedding(
        name,
        {**t5.CONFIG, **sizes},
        "mean",
        words=Words.T5,
        length=length,
        model_max_length=512,
        rows=rows,
        ids=_T5_IDS,
        dense=_DENSE,
        held_by=_READ,
    )
    for name, sizes, length, rows in (
        ("sentence-transformers/sentence-t5-base", _T5_BASE, 256, (Source.ST_TABLE, Source.MTEB)),
        ("sentence-transformers/gtr-t5-base", _T5_BASE, 512, (Source.ST_TABLE, Source.MTEB)),
        ("hkunlp/instructor-large", _T5_LARGE, 512, (Source.INSTRUCTOR,)),
    )
)
_mistral = partial(
    plain,
    expected=Served(pooling="mean", is_normalized=True, size=4096, length=32768),
    words=Words.LLAMA,
    model_max_length=32768,
    held_by=_READ,
)
DECODERS: tuple[Repository, ...] = (
    _mistral(
        "GritLM/GritLM-7B",
        {**gritlm.CONFIG, **_MISTRAL, "sliding_window": 4096},
        rows=(Source.GRITLM,),
        ids=Ids(of="GritLM-7B", first="<s>", last="", source=Source.GRITLM),
    ),
    embedding(
        "nvidia/llama-nemotron-embed-1b-v2",
        {**llama_bidirec.CONFIG, **_LLAMA_1B},
        "mean",
        words=Words.LLAMA3,
        length=8192,
        rows=(Source.NEMO, Source.VLLM_CLASSES),
        held_by=_READ,
    ),
    plain(
        "nvidia/llama-nemotron-rerank-1b-v2",
        {**llama_bidirec.SCORING, **_LLAMA_1B},
        Served(task=Task.RERANK, head=Head.SCORES, size=1, length=131072, activation=Activation.SIGMOID),
        words=Words.LLAMA3,
        rows=(Source.NEMO, Source.VLLM_CLASSES),
        model_max_length=131072,
        held_by=_READ,
    ),
    _mistral(
        "nvidia/NV-Embed-v2",
        {**nv_embed.CONFIG, **_NV_EMBED},
        rows=(Source.NV_EMBED, Source.NV_EMBED_CODE),
        ids=Ids(of="NV-Embed-v2", first="<s>", last="</s>", source=Source.NV_EMBED_CODE),
    ),
)
REPOSITORIES: tuple[Repository, ...] = (*T5, *DECODERS)
