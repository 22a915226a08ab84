"""What the libraries themselves make of one text at a time, without any of our code.

Shapes: S tokens of one sequence, D numbers of a row, V entries of the vocabulary, L labels.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torch import Tensor
from torch.nn import functional
from transformers import AutoModel

from engine.model.coverage import Use
from engine.types import OutputKind
from tests.parity.architectures import BGE_M3, STATIC
from tests.parity.folders import CLASSES, QUESTIONS, pooling_in
from tests.parity.texts import SPECIAL_IDS, Text

Outputs = Mapping[OutputKind, NDArray[np.float32]]  # of one text; sparse ones as a row of the whole vocabulary


class Reference:
    """One cell's model."""

    def __init__(self, name: str, use: Use, folder: Path) -> None:
        self._name = name
        self._use = use
        self._folder = folder
        self._model: Any = None
        if name != STATIC:
            library_class = AutoModel if name == BGE_M3 else CLASSES[use]
            self._model = library_class.from_pretrained(folder, dtype=torch.float32)

    def __call__(self, text: Text) -> Outputs:
        """Everything that the cell is for."""
        with torch.inference_mode():
            outputs = self._outputs(text)
        return {kind: tensor.float().numpy() for kind, tensor in outputs.items()}

    def _outputs(self, text: Text) -> dict[OutputKind, Tensor]:
        if self._name == STATIC:
            return self._static(text)
        if self._name == BGE_M3:
            return self._embed(text) | self._bge_m3(text)
        match self._use:
            case Use.EMBED:
                return self._embed(text)
            case Use.RERANK | Use.CLASSIFY:
                return {OutputKind.LOGITS: self._run(text).logits[0]}
            case Use.TOKEN_CLASSIFY:
                return {OutputKind.TOKEN_LOGITS: self._run(text).logits[0]}
            case Use.SPARSE:
                return {OutputKind.SPARSE: self._splade(text)}
            case Use.LATE_INTERACTION:
                weight = load_file(self._folder / "1_Dense" / "model.safetensors")["linear.weight"]
                return {OutputKind.MULTI_VECTOR: functional.normalize(self._token_rows(text) @ weight.T, dim=-1)}
            case Use.GENERATIVE_RERANK:
                last = self._run(text).logits[0, -1]
                asked = QUESTIONS[self._name]
                no = 0.0 if asked.no_id is None else last[asked.no_id]
                return {OutputKind.LOGITS: (last[asked.yes_id] - no)[None]}

    def _run(self, text: Text) -> Any:
        types = {} if text.types is None else {"token_type_ids": torch.tensor([text.types])}
        seen = [[1] * (len(text.ids) - text.num_expansion) + [0] * text.num_expansion]
        return self._model(input_ids=torch.tensor([text.ids]), attention_mask=torch.tensor(seen), **types)

    def _token_rows(self, text: Text) -> Tensor:
        rows: Tensor = self._run(text).last_hidden_state[0]
        return rows

    def _embed(self, text: Text) -> dict[OutputKind, Tensor]:
        rows = self._token_rows(text)
        pooling = Pooling(rows.shape[1], pooling_in(self._folder), include_prompt=not text.num_prompt)
        features = {"token_embeddings": rows[None], "attention_mask": torch.ones(1, len(rows), dtype=torch.int64)}
        pooled = pooling({**features, "prompt_length": text.num_prompt})["sentence_embedding"][0]
        return {OutputKind.POOLED: pooled, OutputKind.TOKENS: rows}

    def _splade(self, text: Text) -> Tensor:
        logits = self._run(text).logits
        features = {"token_embeddings": logits, "attention_mask": torch.ones(1, len(text.ids), dtype=torch.int64)}
        row: Tensor = SpladePooling().eval()(features)["sentence_embedding"][0]
        return row

    def _bge_m3(self, text: Text) -> dict[OutputKind, Tensor]:
        """As FlagEmbedding's M3 model does it, which leaves out the first row later."""
        rows = self._token_rows(text)
        sparse, colbert = (load_file(self._folder / f"{name}_linear.safetensors") for name in ("sparse", "colbert"))
        weights = functional.relu(rows @ sparse["weight"].T + sparse["bias"])[:, 0]
        entries = torch.zeros(self._model.config.vocab_size)
        for number, weight in zip(text.ids, weights, strict=True):
            if number not in SPECIAL_IDS:
                entries[number] = torch.maximum(entries[number], weight)
        vectors = functional.normalize(rows @ colbert["weight"].T + colbert["bias"], dim=-1)
        return {OutputKind.SPARSE: entries, OutputKind.MULTI_VECTOR: vectors}

    def _static(self, text: Text) -> dict[OutputKind, Tensor]:
        """sentence-transformers' StaticEmbedding is this."""
        table = load_file(self._folder / "model.safetensors")["embedding.weight"]
        offsets = torch.tensor([0])
        return {OutputKind.POOLED: functional.embedding_bag(torch.tensor(text.ids), table, offsets, mode="mean")[0]}
