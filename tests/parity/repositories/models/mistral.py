"""Embedding models on Mistral: e5-mistral and those made of it."""

from typing import Any

from tests.parity.repositories.configs import published
from tests.parity.repositories.facts import Ids, Repository
from tests.parity.repositories.forms import embedding
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_MISTRAL: dict[str, Any] = published("e5-mistral-7b-instruct")
_WITH_LAST = Ids(of="e5-mistral-7b-instruct", first="<s>", last="</s>", source=Source.E5)
_BOTH_ENDS = {"add_bos_token": True, "add_eos_token": True}
REPOSITORIES: tuple[Repository, ...] = tuple(
    embedding(
        name,
        _MISTRAL,
        Words.LLAMA,
        "last",
        length=length,
        model_max_length=32768,
        rows=(Source.E5, *sources),
        ids=_WITH_LAST,
        flags=_BOTH_ENDS,
        torch_dtype=dtype,
    )
    for name, length, sources, dtype in (
        ("intfloat/e5-mistral-7b-instruct", 4096, (Source.MTEB, Source.VLLM_CLASSES), "float16"),
        ("Salesforce/SFR-Embedding-Mistral", 4096, (Source.CARD, Source.MTEB), "float16"),
        ("Linq-AI-Research/Linq-Embed-Mistral", 4096, (Source.CARD, Source.MTEB), "bfloat16"),
    )
)
