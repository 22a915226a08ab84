// OpenAI's SDK.
import OpenAI from 'openai'
import { rows, run } from './report.mjs'

async function embed({ url, key, texts }) {
  const answer = await new OpenAI({ baseURL: `${url}/v1`, apiKey: key }).embeddings.create({ model: 'm', input: texts })
  return rows(answer.data.map((item) => item.embedding))
}

await run(embed)
