#!/bin/sh
# pylate 1.6.0 with sentence-transformers 5.3.0 and transformers 5.3.0: where a tokenizer puts no token before a text,
# the marker of queries and documents stands inside of the text. Seen on 2026-11-27, Python 3.11, Linux x86_64.
#
# Expected: a late-interaction query begins with its marker, [Q], and a document with [D]; with [CLS] before the text the
# marker comes second. sentence-transformers' MultiVectorEncoder of 6.2 puts it before the text with any tokenizer.
# What happens: PyLate puts the marker at position 1, whatever is at position 0. With a tokenizer that begins with [CLS]
# that is right. With one that does not, as many decoders' are, the text's own first token comes before its marker.
# Why it matters: who serves such a model must do the same, or each query gives other rows than the model was trained
# with, and no error says so. The same weights saved for the other library have another order of tokens.
#
# pylate is installed without what it requires for its indexes: fast-plaid is built for one version of torch, and making
# ids needs none of it. Needs Python 3.11 to 3.13 with venv, a package index, and up to 8 GB of disk for the time it
# runs: torch's builds for Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/texts.py" <<'END'
import logging
import tempfile

from pylate import models
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

logging.disable(logging.CRITICAL)
WORDS = {word: number for number, word in enumerate("[PAD] [UNK] [CLS] [SEP] [MASK] when does the boat go".split())}


def model_with(frame: str) -> models.ColBERT:
    """A tiny model whose tokenizer puts this around a text."""
    made = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    made.pre_tokenizer = WhitespaceSplit()
    made.add_special_tokens(list(WORDS)[:5])
    special = [(word, WORDS[word]) for word in frame.split() if word != "$A"]
    made.post_processor = TemplateProcessing(single=frame, special_tokens=special)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    with tempfile.TemporaryDirectory() as folder:
        BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes)).save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(folder)
        return models.ColBERT(folder, embedding_size=8, device="cpu", do_query_expansion=False)


for frame in ("[CLS] $A [SEP]", "$A [SEP]", "$A"):
    model = model_with(frame)
    for is_query in (True, False):
        ids = model.tokenize(["when does the boat go"], is_query=is_query)["input_ids"][0].tolist()
        tokens = (token.strip() for token in model.tokenizer.convert_ids_to_tokens(ids))
        print(f"{frame:14} {'query' if is_query else 'document':8}", *tokens)
END

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    torch==2.13.0 transformers==5.3.0 sentence-transformers==5.3.0 numpy==2.3.5 ujson==5.12.0 datasets==4.0.0 \
    pandas==2.3.3 accelerate==1.12.0
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps pylate==1.6.0
"$folder/venv/bin/python" -W ignore "$folder/texts.py" 2> "$folder/log" | tee "$folder/seen"
expected="[CLS] \$A [SEP] query    [CLS] [Q] when does the boat go [SEP]
[CLS] \$A [SEP] document [CLS] [D] when does the boat go [SEP]
\$A [SEP]       query    when [Q] does the boat go [SEP]
\$A [SEP]       document when [D] does the boat go [SEP]
\$A             query    when [Q] does the boat go
\$A             document when [D] does the boat go"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { cat "$folder/log"; echo "this has changed"; exit 1; }
