"""Models whose files have a form of their own: a Dense, another family's tokenizer, only a transformer."""

from tests.parity.repositories.facts import Ids, Repository, Served
from tests.parity.repositories.forms import embedding, plain
from tests.parity.repositories.models.bert import UNCASED
from tests.parity.repositories.models.families import BERT, BERT_SMALL, DISTILBERT, ROBERTA
from tests.parity.repositories.models.multilingual import ROBERTA_IDS
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_TABLE = (Source.ST_TABLE, Source.ST_PRETRAINED)

REPOSITORIES: tuple[Repository, ...] = (
    embedding(
        "sentence-transformers/paraphrase-MiniLM-L6-v2",
        BERT_SMALL,
        Words.UNCASED,
        "mean",
        length=128,
        model_max_length=512,
        is_normalized=False,
        rows=_TABLE,
        ids=UNCASED,
        num_hidden_layers=6,
    ),
    embedding(
        "sentence-transformers/all-distilroberta-v1",
        {**ROBERTA, "architectures": ["RobertaForMaskedLM"], "num_hidden_layers": 6},
        Words.ROBERTA,
        "mean",
        length=512,
        rows=(Source.ST_TABLE,),
        ids=ROBERTA_IDS,
    ),
    embedding(
        "sentence-transformers/distiluse-base-multilingual-cased-v2",
        {**DISTILBERT, "vocab_size": 119547},
        Words.CASED,
        "mean",
        length=128,
        model_max_length=512,
        is_normalized=False,
        dense=((512, True, "torch.nn.modules.activation.Tanh"),),
        rows=(Source.CARD, *_TABLE),
        ids=Ids(
            of="bert-base-multilingual-cased-ner-hrl",
            text="How are you doing?",
            ids=(101, 14962, 10301, 13028, 30918, 136, 102),
            first="[CLS]",
            last="[SEP]",
            source=Source.JS_BERT,
        ),
    ),
    embedding(  # RoBERTa's layers and positions with BERT's tokenizer
        "jhgan/ko-sroberta-multitask",
        {**ROBERTA, "tokenizer_class": "BertTokenizer", "vocab_size": 32000},
        Words.KOREAN,
        "mean",
        length=128,
        model_max_length=512,
        is_normalized=False,
        rows=(Source.CARD, Source.ST_PRETRAINED),
    ),
    *(
        plain(
            name,
            {**BERT, "architectures": ["Contriever"]},
            Words.UNCASED,
            Served(pooling="mean", size=768, length=512),
            rows=(Source.CONTRIEVER, Source.MTEB),
            ids=UNCASED,
            model_max_length=512,
            is_pickled=True,
        )
        for name in ("facebook/contriever", "facebook/contriever-msmarco")
    ),
)
