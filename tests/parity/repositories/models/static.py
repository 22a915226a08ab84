"""Static models: a row for each token, and their mean."""

from typing import Any

from tests.parity.repositories.facts import Head, Repository, Served
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_PACKAGE = "sentence_transformers.models."
_NO_LIMIT = 32768


def _modules(path: str, *, is_normalized: bool) -> list[dict[str, Any]]:
    normalize = [{"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{_PACKAGE}Normalize"}]
    first = {"idx": 0, "name": "0", "path": path, "type": f"{_PACKAGE}StaticEmbedding"}
    return [first, *(normalize if is_normalized else [])]


def _served(size: int, *, is_normalized: bool) -> Served:
    return Served(head=Head.STATIC, pooling="mean", is_normalized=is_normalized, size=size, length=_NO_LIMIT)


REPOSITORIES: tuple[Repository, ...] = (
    Repository(
        name="minishlab/potion-base-8M",
        files={
            "config.json": {
                "model_type": "model2vec",
                "architectures": ["StaticModel"],
                "apply_pca": 256,
                "apply_zipf": True,
                "hidden_dim": 256,
                "seq_length": 1000000,
                "normalize": True,
            },
            "modules.json": _modules(".", is_normalized=True),
        },
        words=Words.STATIC,
        expected=_served(256, is_normalized=True),
        rows=(Source.ST_PRETRAINED,),
        table=("embeddings", ""),
    ),
    Repository(
        name="sentence-transformers/static-retrieval-mrl-en-v1",
        files={"modules.json": _modules("0_StaticEmbedding", is_normalized=False)},
        words=Words.STATIC,
        expected=_served(1024, is_normalized=False),
        rows=(Source.ST_PRETRAINED,),
        table=("embedding.weight", "0_StaticEmbedding"),
    ),
)
