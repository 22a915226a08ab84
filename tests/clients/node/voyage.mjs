// Voyage's SDK.
import { VoyageAIClient } from 'voyageai'
import { ranked, rows, run } from './report.mjs'

async function embed({ url, key, texts }) {
  const answer = await new VoyageAIClient({ apiKey: key, environment: `${url}/v1` }).embed({ input: texts, model: 'm' })
  return rows(answer.data.map((item) => item.embedding))
}

async function rerank({ url, key, query, documents }) {
  const client = new VoyageAIClient({ apiKey: key, environment: `${url}/v1` })
  const answer = await client.rerank({ query, documents, model: 'm' })
  return ranked(answer.data.map((item) => [item.index, item.relevanceScore]))
}

await run(embed, rerank)
