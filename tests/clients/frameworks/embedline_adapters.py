"""Our own client behind the interfaces of LangChain, LlamaIndex and Haystack."""

from typing import Any

from haystack import Document
from haystack.utils import Secret
from report import Result, rows, run

from embedline.adapters.haystack import EmbedlineDocumentEmbedder
from embedline.adapters.langchain import EmbedlineEmbeddings
from embedline.adapters.llama_index import EmbedlineEmbedding


def embed(task: Any) -> Result:
    return rows(EmbedlineEmbeddings(task.url, task.key).embed_documents(task.texts))


def embed_llama_index(task: Any) -> Result:
    return rows(EmbedlineEmbedding(task.url, task.key).get_text_embedding_batch(task.texts))


def embed_haystack(task: Any) -> Result:
    embedder = EmbedlineDocumentEmbedder(task.url, Secret.from_token(task.key))
    return rows(one.embedding for one in embedder.run([Document(content=text) for text in task.texts])["documents"])


run(embed, embed_llama_index, embed_haystack)
