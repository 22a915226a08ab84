"""Embedding models on ModernBERT and NomicBERT."""

from tests.parity.repositories.facts import Repository
from tests.parity.repositories.forms import embedding
from tests.parity.repositories.models.families import MODERNBERT
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

NOMIC_PREFIXES = ("query: search_query: ", "document: search_document: ")

_MODERNBERT = (
    embedding(
        "Alibaba-NLP/gte-modernbert-base",
        MODERNBERT,
        Words.MODERN,
        "cls",
        length=8192,
        is_normalized=False,
        rows=(Source.VLLM_GTE, Source.MTEB),
    ),
    embedding(
        "nomic-ai/modernbert-embed-base",
        MODERNBERT,
        Words.MODERN,
        "mean",
        length=8192,
        rows=(Source.FASTEMBED_RS, Source.MTEB),
        card=NOMIC_PREFIXES,
    ),
    embedding(
        "ibm-granite/granite-embedding-english-r2",
        MODERNBERT,
        Words.MODERN,
        "cls",
        length=8192,
        is_normalized=False,
        rows=(Source.BGE_NOTES, Source.MTEB),
        global_rope_theta=80000.0,
    ),
)
REPOSITORIES: tuple[Repository, ...] = _MODERNBERT
