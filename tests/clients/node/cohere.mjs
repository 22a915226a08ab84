// Cohere's SDK, versions 1 and 2 of its API.
import { CohereClient, CohereClientV2 } from 'cohere-ai'
import { ranked, rows, run } from './report.mjs'

async function embed({ url, key, texts }) {
  const answer = await new CohereClientV2({ token: key, environment: url }).embed({
    model: 'm', texts, inputType: 'search_document', embeddingTypes: ['float'],
  })
  return rows(answer.embeddings.float)
}

async function embed_v1({ url, key, texts }) {
  const answer = await new CohereClient({ token: key, environment: url }).embed({
    model: 'm', texts, inputType: 'search_document',
  })
  return rows(answer.embeddings)
}

async function rerank({ url, key, query, documents }) {
  const answer = await new CohereClientV2({ token: key, environment: url }).rerank({ model: 'm', query, documents })
  return ranked(answer.results.map((item) => [item.index, item.relevanceScore]))
}

await run(embed, embed_v1, rerank)
