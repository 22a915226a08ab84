"""The rows of a model's own library, sentence-transformers or transformers, for one text at a time.

They are loaded here alone, and only by `embedline verify`. Shapes: N texts or pairs, D numbers a row, float32.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.model.detection.architecture import REWARD
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, Task
from engine.types import ModelError
from server.commands.verify.inputs import Inputs
from server.supervisor.planning.model_plan import ModelPlan

_Array = NDArray[np.float32]

_EXTRA = "pip install 'embedline[verify]'"


def rows_of(plan: ModelPlan, asked: Inputs) -> tuple[_Array, str]:
    """One row a text or pair [N, D], of token classifiers and late interaction one a token that counts [T, D]; raw, and
    whose rows they are.

    Raises ModelError where the library is not installed.
    """
    try:
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        return _REFERENCES[plan.folder.task](plan, asked)
    except ModuleNotFoundError as error:
        raise ModelError(f"verifying needs {error.name}, which is not installed: {_EXTRA}") from error


def _embeddings(plan: ModelPlan, asked: Inputs) -> tuple[_Array, str]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(modules=_pooled_by_flag(plan), device="cpu") if plan.settings.pooling else None
    model = model or SentenceTransformer(str(plan.folder.path), device="cpu", local_files_only=True)
    if not plan.folder.is_static:
        model.max_seq_length = plan.folder.max_seqlen
    rows = model.encode(list(asked.texts), prompt=plan.default_prompt, batch_size=1, show_progress_bar=False)
    return np.asarray(rows, np.float32), "sentence-transformers"


def _pooled_by_flag(plan: ModelPlan) -> list[Any]:
    """The modules that --pooling asks for."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    bare = Transformer(str(plan.folder.weights_folder))
    mode = {"last": "lasttoken"}.get(plan.folder.pooling, plan.folder.pooling)
    return [bare, Pooling(bare.get_embedding_dimension(), mode)]


def _sparse(plan: ModelPlan, asked: Inputs) -> tuple[_Array, str]:
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(str(plan.folder.path), device="cpu", local_files_only=True)
    model.max_seq_length = plan.folder.max_seqlen
    rows = model.encode(list(asked.texts), batch_size=1, show_progress_bar=False, convert_to_sparse_tensor=False)
    return np.asarray([row.numpy() for row in rows], np.float32), "sentence-transformers"


def _scores(plan: ModelPlan, asked: Inputs) -> tuple[_Array, str]:
    """Of the class that config.json names; of a generative reranker the whole next token's."""
    if plan.folder.architectures[:1] == (REWARD,):
        raise ModelError(f"transformers has no {REWARD} to compare with")
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    answer = next((head for head in plan.folder.heads if isinstance(head, AnswerScore)), None)
    kind = AutoModelForCausalLM if answer else AutoModelForSequenceClassification
    model, encode = _library_model(plan.folder, kind)
    second: Sequence[str | None] = asked.pair_texts or [None] * len(asked.texts)
    rows = []
    with torch.inference_mode():
        for text, pair in zip(asked.texts, second, strict=True):
            logits = model(**encode(text, pair)).logits.float()
            rows.append(_answer(logits[0, -1], answer) if answer else logits[0])
    return torch.stack(rows).numpy(), "transformers"


def _answer(logits: Any, answer: AnswerScore) -> Any:
    score = logits[answer.yes_id]
    return (score if answer.no_id is None else score - logits[answer.no_id])[None]


def _token_scores(plan: ModelPlan, asked: Inputs) -> tuple[_Array, str]:
    import torch
    from transformers import AutoModelForTokenClassification

    model, encode = _library_model(plan.folder, AutoModelForTokenClassification)
    with torch.inference_mode():
        rows = [model(**encode(text, None)).logits[0].float() for text in asked.texts]
    return torch.cat(rows).numpy(), "transformers"


def _token_vectors(plan: ModelPlan, asked: Inputs) -> tuple[_Array, str]:
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(plan.folder.path), device="cpu", local_files_only=True)
    queries, documents = list(asked.texts[: asked.num_queries]), list(asked.texts[asked.num_queries :])
    rows = [
        *model.encode_query(queries, batch_size=1, show_progress_bar=False, convert_to_numpy=True),
        *model.encode_document(documents, batch_size=1, show_progress_bar=False, convert_to_numpy=True),
    ]
    return np.concatenate(rows).astype(np.float32), "sentence-transformers"


def _library_model(folder: ModelFolder, kind: Any) -> tuple[Any, Callable[[str, str | None], Any]]:
    """The library's own model in float32, and what makes its inputs of a text or pair."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder.path, local_files_only=True)
    model = kind.from_pretrained(folder.path, dtype=torch.float32, local_files_only=True, use_safetensors=True).eval()
    template = folder.template

    def encode(text: str, pair: str | None) -> Any:
        if template is None:
            return tokenizer(text, pair, truncation=True, max_length=folder.max_seqlen, return_tensors="pt")
        filling = {"instruction": template.instruction, "query": text, "document": pair}
        parts = [part.format(**filling) if "{" in part else part for part in template.parts]
        ids = [token_id for part in parts for token_id in tokenizer(part, add_special_tokens=False)["input_ids"]]
        return {"input_ids": torch.tensor([ids])}

    return model, encode


_REFERENCES: dict[Task, Callable[[ModelPlan, Inputs], tuple[_Array, str]]] = {
    Task.EMBED: _embeddings,
    Task.SPARSE: _sparse,
    Task.RERANK: _scores,
    Task.CLASSIFY: _scores,
    Task.TOKEN_CLASSIFY: _token_scores,
    Task.LATE_INTERACTION: _token_vectors,
}
