#!/bin/sh
# PEFT 0.21.2 with transformers 5.23.0: `target_modules="all-linear"` takes the output layer of a classifier, too, unless
# task_type is SEQ_CLS. Seen on 2026-11-29, Python 3.11, Linux x86_64.
#
# Expected: the documentation of LoraConfig says that all linear layers are chosen but the output layer.
# What happens: the output layer is known by get_output_embeddings, which classifiers lack, and by the names of saved
# modules, which SEQ_CLS alone brings. Without a task type, as sentence-transformers' CrossEncoder.add_adapter leaves it
# where the user does, the score head and the pooler before it get matrices of low rank.
# Why it matters: a server that computes adapters inside of the transformer alone, or that leaves poolers out because no
# embedding is made of them, gives a reranker other scores and says nothing. And the same training code gives adapters
# with a head of full rank, or with one of low rank, as one argument says that is about another thing.
#
# Needs Python 3.11 to 3.13 with venv, a package index, and up to 8 GB of disk for the time it runs: torch's builds for
# Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/adapt.py" <<'EOF'
from peft import LoraConfig, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 16}
for task in (None, TaskType.FEATURE_EXTRACTION, TaskType.SEQ_CLS):
    model = BertForSequenceClassification(BertConfig(**sizes, num_labels=1))
    adapted = get_peft_model(model, LoraConfig(target_modules="all-linear", task_type=task))
    names = [name.removeprefix("base_model.model.") for name, _ in adapted.named_parameters()]
    thin = sorted({name.split(".lora_")[0] for name in names if ".lora_" in name and ".encoder." not in name})
    whole = sorted({name.split(".")[0] for name in names if ".modules_to_save." in name})
    print(f"task_type {task and task.value}: adapted outside of the encoder: {thin}; saved whole: {whole}")
EOF

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    torch==2.13.0 transformers==5.23.0 peft==0.21.2 accelerate==1.15.0 numpy==2.3.5
"$folder/venv/bin/python" -W ignore "$folder/adapt.py" "$folder/adapter" 2> /dev/null | tee "$folder/seen"
expected="task_type None: adapted outside of the encoder: ['bert.pooler.dense', 'classifier']; saved whole: []
task_type FEATURE_EXTRACTION: adapted outside of the encoder: ['bert.pooler.dense', 'classifier']; saved whole: []
task_type SEQ_CLS: adapted outside of the encoder: ['bert.pooler.dense']; saved whole: ['classifier']"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }
