// What every script here shares, as report.py does for Python: the task from stdin, its cases, their results to stdout.
import { readFileSync } from 'node:fs'

export const rows = (vectors) => ({ rows: Array.from(vectors, (vector) => Array.from(vector, Number)) })
export const ranked = (pairs) => ({ ranked: Array.from(pairs) })

export async function run(...cases) {
  const task = JSON.parse(readFileSync(0, 'utf8'))
  const results = {}
  for (const one of cases) {
    if (task.only.length && !task.only.includes(one.name)) continue
    try {
      results[one.name] = await one(task)
    } catch (error) {
      results[one.name] = { error: error.constructor.name, message: String(error.message) }
    }
  }
  process.stdout.write(JSON.stringify(results))
}
