"""Model folders of many shapes: the files that say what a model is, with weights of a few numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.engine.folder_files import change, write

HIDDEN_SIZE = 8
MODULE = "sentence_transformers.models."
CONFIG = "config_sentence_transformers.json"
_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "yes", "no", "Yes", "1", "0", "hello", ".", "[unused0]")
WORDS = (*_WORDS, "[unused1]")
QWEN3_CHAT = 'Note that the answer can only be "yes" or "no".{{ messages }}'


def config(folder: Path, model_type: str, architecture: str, **more: Any) -> None:
    """config.json."""
    shared = {"hidden_size": HIDDEN_SIZE, "vocab_size": 32, "max_position_embeddings": 64}
    write(folder / "config.json", {"model_type": model_type, "architectures": [architecture], **shared, **more})


def weights(file: Path, **shapes: Sequence[int]) -> None:
    """Zeros; a double underscore stands for a dot."""
    file.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name.replace("__", "."): np.zeros(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors or {"embeddings.weight": np.zeros((32, HIDDEN_SIZE), np.float32)}, file)


def tokenizer(folder: Path, *, added: Sequence[str] = (), last_id: int | None = None) -> None:
    """tokenizer.json with WORDS and the added tokens; `last_id`: put after each text."""
    first = len(WORDS)
    processor = None
    if last_id is not None:
        tokens = {"[SEP]": {"id": "[SEP]", "ids": [last_id], "tokens": ["[SEP]"]}}
        text, end = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
        processor = {"type": "TemplateProcessing", "single": [text, end], "pair": [text, end], "special_tokens": tokens}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    write(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "added_tokens": [{"id": first + at, "content": token, **flags} for at, token in enumerate(added)],
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": processor,
            "model": {
                "type": "WordLevel",
                "vocab": {word: index for index, word in enumerate(WORDS)},
                "unk_token": "[UNK]",
            },
        },
    )


def modules(folder: Path, **entries: str) -> None:
    """modules.json: path -> class; "root" stands for the folder itself."""
    listed = [
        {"idx": index, "name": str(index), "path": "" if path == "root" else path, "type": kind}
        for index, (path, kind) in enumerate(entries.items())
    ]
    write(folder / "modules.json", listed)


def _base(folder: Path) -> None:
    tokenizer(folder)
    weights(folder / "model.safetensors")


def embedding(folder: Path) -> None:
    _base(folder)
    config(folder, "bert", "BertModel")
    modules(folder, root=f"{MODULE}Transformer", p1=f"{MODULE}Pooling", d2=f"{MODULE}Dense", n3=f"{MODULE}Normalize")
    write(folder / "p1" / "config.json", {"pooling_mode": "cls"})
    write(folder / "d2" / "config.json", {"in_features": HIDDEN_SIZE, "out_features": 4})
    weights(folder / "d2" / "model.safetensors", linear__weight=(4, HIDDEN_SIZE), linear__bias=(4,))


def masked_lm(folder: Path) -> None:
    _base(folder)
    config(folder, "bert", "BertForMaskedLM")


def splade(folder: Path) -> None:
    masked_lm(folder)
    modules(
        folder,
        root="sentence_transformers.sparse_encoder.models.MLMTransformer",
        p1="sentence_transformers.sparse_encoder.models.SpladePooling",
    )
    write(folder / CONFIG, {"model_type": "SparseEncoder"})
    write(folder / "p1" / "config.json", {"pooling_strategy": "sum", "activation_function": "log1p_relu"})


def inference_free_splade(folder: Path) -> None:
    query, document, pooling = "query_0_SparseStaticEmbedding", "document_0_MLMTransformer", "document_1_SpladePooling"
    masked_lm(folder / document)
    tokenizer(folder / query)
    weights(folder / query / "model.safetensors", weight=(len(WORDS),))
    write(folder / pooling / "config.json", {})
    modules(folder, root=f"{MODULE}Router")
    own = "sentence_transformers.sparse_encoder.models"
    types = {name: f"{own}.{name.split('_')[2]}" for name in (query, document, pooling)}
    structure = {"query": [query], "document": [document, pooling]}
    write(folder / "router_config.json", {"types": types, "structure": structure, "parameters": {}})
    write(folder / CONFIG, {"model_type": "SparseEncoder"})


def cross_encoder(folder: Path) -> None:
    tokenizer(folder)
    weights(folder / "model.safetensors", classifier__weight=(1, HIDDEN_SIZE), classifier__bias=(1,))
    cross_encoder = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.1.0"}
    config(
        folder, "bert", "BertForSequenceClassification", id2label={"0": "LABEL_0"}, sentence_transformers=cross_encoder
    )


def classifier(folder: Path) -> None:
    tokenizer(folder)
    weights(folder / "model.safetensors", classifier__out_proj__weight=(7, HIDDEN_SIZE))
    labels = {str(index): f"feeling {index}" for index in range(7)}
    problem = "multi_label_classification"
    config(folder, "roberta", "RobertaForSequenceClassification", id2label=labels, problem_type=problem)


def reward(folder: Path) -> None:
    tokenizer(folder)
    weights(folder / "model.safetensors", score__weight=(1, HIDDEN_SIZE))
    config(folder, "llama", "LlamaForSequenceClassification", num_labels=1)


def token_classifier(folder: Path) -> None:
    tokenizer(folder)
    weights(folder / "model.safetensors", classifier__weight=(3, HIDDEN_SIZE))
    config(folder, "bert", "BertForTokenClassification", id2label={"0": "O", "1": "B-PER", "2": "I-PER"})


def static(folder: Path) -> None:
    inner = folder / "0_StaticEmbedding"
    tokenizer(inner)
    weights(inner / "model.safetensors", embedding__weight=(len(WORDS), 6))
    modules(folder, **{inner.name: f"{MODULE}StaticEmbedding", "n1": f"{MODULE}Normalize"})


def model2vec(folder: Path) -> None:
    tokenizer(folder)
    weights(folder / "model.safetensors", embeddings=(4, 6), mapping=(len(WORDS),))
    write(folder / "config.json", {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True})


def qwen3_reranker(folder: Path) -> None:
    _base(folder)
    config(folder, "qwen3", "Qwen3ForCausalLM")
    write(folder / "tokenizer_config.json", {"chat_template": QWEN3_CHAT})


def mxbai_reranker(folder: Path) -> None:
    _base(folder)
    config(folder, "qwen2", "Qwen2ForCausalLM", _name_or_path="mixedbread-ai/mxbai-rerank-base-v2")


def gemma_reranker(folder: Path) -> None:
    _base(folder)
    config(folder, "gemma", "GemmaForCausalLM")


def logit_score(folder: Path) -> None:
    _base(folder)
    config(folder, "qwen3", "Qwen3ForCausalLM")
    (folder / "chat_template.jinja").write_text(QWEN3_CHAT)
    kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    modules(folder, root="sentence_transformers.base.modules.transformer.Transformer", s1=kind)
    forwards = {"method": "forward", "method_output_name": "logits"}
    modalities = {"text": forwards, "message": {**forwards, "format": "flat"}}
    options = {"transformer_task": "text-generation", "modality_config": modalities}
    write(folder / "sentence_bert_config.json", options)
    write(folder / "s1" / "config.json", {"true_token_id": 5, "false_token_id": 6})
    prompts = {"prompts": {"web": "Is it on the web?"}, "default_prompt_name": "web"}
    write(folder / CONFIG, {"model_type": "CrossEncoder", **prompts})


def bge_m3(folder: Path) -> None:
    embedding(folder)
    change(folder / "config.json", model_type="xlm-roberta", architectures=["XLMRobertaModel"])
    weights(folder / "sparse_linear.safetensors", weight=(1, HIDDEN_SIZE), bias=(1,))
    weights(folder / "colbert_linear.safetensors", weight=(HIDDEN_SIZE, HIDDEN_SIZE), bias=(HIDDEN_SIZE,))


def pylate(folder: Path) -> None:
    _base(folder)
    tokenizer(folder, added=("[Q] ", "[D] "))
    config(folder, "bert", "BertModel")
    modules(folder, root=f"{MODULE}Transformer", d1="pylate.models.Dense.Dense")
    identity = "torch.nn.modules.linear.Identity"
    dense = {"in_features": HIDDEN_SIZE, "out_features": 4, "bias": False, "activation_function": identity}
    write(folder / "d1" / "config.json", dense)
    weights(folder / "d1" / "model.safetensors", linear__weight=(4, HIDDEN_SIZE))
    knobs = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 16, "document_length": 40}
    write(folder / CONFIG, {"model_type": "ColBERT", **knobs, "skiplist_words": [".", ";"]})


def multi_vector(folder: Path) -> None:
    pylate(folder)
    token_rows = {"module_input_name": "token_embeddings"}
    kinds = {"m2": "multi_vector_encoder.modules.MultiVectorMask", "n3": "base.modules.normalize.Normalize"}
    own = {path: f"sentence_transformers.{kind}" for path, kind in kinds.items()}
    modules(folder, root=f"{MODULE}Transformer", d1=f"{MODULE}Dense", **own)
    change(folder / "d1" / "config.json", **token_rows)
    write(folder / "m2" / "config.json", {"skiplist_words": ["hello"]})
    write(folder / "n3" / "config.json", token_rows)
    expansion = {"strategy": "fixed", "attend": True, "length": 12}
    write(folder / "sentence_bert_config.json", {"query_expansion": expansion, "document_length": 50})
    write(folder / CONFIG, {"model_type": "MultiVectorEncoder", "prompts": {"query": "[Q] ", "document": "text: "}})


def stanford_colbert(folder: Path) -> None:
    tokenizer(folder)
    weights(folder / "model.safetensors", bert__x=(1,), linear__weight=(4, HIDDEN_SIZE))
    config(folder, "bert", "HF_ColBERT")
    artifact = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 20, "doc_maxlen": 30}
    write(folder / "artifact.metadata", {**artifact, "mask_punctuation": True, "attend_to_mask_tokens": False})
