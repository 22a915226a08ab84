// LangChain's embeddings over OpenAI's API; in JavaScript it sends texts.
import { OpenAIEmbeddings } from '@langchain/openai'
import { rows, run } from './report.mjs'

async function embed({ url, key, texts }) {
  const client = new OpenAIEmbeddings({ model: 'm', apiKey: key, configuration: { baseURL: `${url}/v1` } })
  return rows(await client.embedDocuments(texts))
}

await run(embed)
