"""LlamaIndex's embeddings and rerankers over several APIs."""

from typing import Any

from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.cohere import CohereEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference as TEIRerank
from report import Result, ranked, rows, run


def embed(task: Any) -> Result:
    client = OpenAILikeEmbedding(model_name="m", api_base=f"{task.url}/v1", api_key=task.key)
    return rows(client.get_text_embedding_batch(task.texts))


def embed_tei(task: Any) -> Result:
    client = TextEmbeddingsInference(model_name="m", base_url=task.url, auth_token=task.key)
    return rows(client.get_text_embedding_batch(task.texts))


def embed_cohere(task: Any) -> Result:
    client = CohereEmbedding(model_name="embed-english-v3.0", api_key=task.key, base_url=task.url)
    return rows(client.get_text_embedding_batch(task.texts))


def rerank(task: Any) -> Result:
    """It sends its token without a word before it."""
    client = TEIRerank(model_name="m", base_url=task.url, auth_token=task.key, top_n=len(task.documents))
    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(n)), score=0) for n, text in enumerate(task.documents)]
    found = client.postprocess_nodes(nodes, query_bundle=QueryBundle(task.query))
    return ranked((int(one.node.node_id), one.score) for one in found)


run(embed, embed_tei, embed_cohere, rerank)
