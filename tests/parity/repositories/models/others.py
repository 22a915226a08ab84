"""Models whose files have a form of their own: a Dense, another family's tokenizer, only a transformer."""

from typing import Any

from tests.parity.repositories.facts import Repository, Served
from tests.parity.repositories.forms import TANH, embedding, plain
from tests.parity.repositories.models.bert import BERT_IDS, UNCASED
from tests.parity.repositories.models.families import BERT, BERT_SMALL, DISTILBERT, ROBERTA
from tests.parity.repositories.models.multilingual import ROBERTA_IDS
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_SHORT: dict[str, Any] = {"length": 128, "model_max_length": 512, "is_normalized": False}
_TABLE = (Source.ST_TABLE, Source.ST_PRETRAINED)

REPOSITORIES: tuple[Repository, ...] = (
    embedding(
        "sentence-transformers/paraphrase-MiniLM-L6-v2",
        BERT_SMALL,
        "mean",
        words=Words.UNCASED,
        **_SHORT,
        rows=_TABLE,
        ids=UNCASED,
        num_hidden_layers=6,
    ),
    embedding(
        "sentence-transformers/all-distilroberta-v1",
        {**ROBERTA, "architectures": ["RobertaForMaskedLM"], "num_hidden_layers": 6},
        "mean",
        words=Words.ROBERTA,
        length=512,
        rows=(Source.ST_TABLE,),
        ids=ROBERTA_IDS,
    ),
    embedding(
        "sentence-transformers/distiluse-base-multilingual-cased-v2",
        {**DISTILBERT, "vocab_size": 119547},
        "mean",
        words=Words.CASED,
        **_SHORT,
        dense=((512, True, TANH),),
        rows=(Source.CARD, *_TABLE),
        ids=BERT_IDS(of="bert-base-multilingual-cased-ner-hrl", ids=(101, 14962, 10301, 13028, 30918, 136, 102)),
    ),
    embedding(  # RoBERTa's layers and positions with BERT's tokenizer
        "jhgan/ko-sroberta-multitask",
        {**ROBERTA, "tokenizer_class": "BertTokenizer", "vocab_size": 32000},
        "mean",
        words=Words.KOREAN,
        **_SHORT,
        rows=(Source.CARD, Source.ST_PRETRAINED),
    ),
    *(
        plain(
            name,
            {**BERT, "architectures": ["Contriever"]},
            Served(pooling="mean", size=768, length=512),
            words=Words.UNCASED,
            rows=(Source.CONTRIEVER, Source.MTEB),
            ids=UNCASED,
            model_max_length=512,
            is_pickled=True,
        )
        for name in ("facebook/contriever", "facebook/contriever-msmarco")
    ),
)
