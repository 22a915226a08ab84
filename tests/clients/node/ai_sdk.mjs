// Vercel's AI SDK with its provider for servers that speak OpenAI's API.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { embedMany } from 'ai'
import { rows, run } from './report.mjs'

async function embed({ url, key, texts }) {
  const provider = createOpenAICompatible({ name: 'embedline', baseURL: `${url}/v1`, apiKey: key })
  const { embeddings } = await embedMany({ model: provider.textEmbeddingModel('m'), values: texts })
  return rows(embeddings)
}

await run(embed)
