// Hugging Face's client, which posts to the address itself.
import { InferenceClient } from '@huggingface/inference'
import { rows, run } from './report.mjs'

async function embed({ url, key, texts }) {
  const answer = await new InferenceClient(key).featureExtraction({ endpointUrl: url, inputs: texts, normalize: false })
  return rows(answer)
}

async function similarity({ url, key, query, documents }) {
  const inputs = { source_sentence: query, sentences: documents }
  return { value: await new InferenceClient(key).sentenceSimilarity({ endpointUrl: url, inputs }) }
}

await run(embed, similarity)
