// Embeddings with fetch, in Node 18 or later, Deno, Bun or a browser: node examples/fetch.mjs

const url = process.env.EMBEDLINE_URL ?? "http://localhost:8080";

const answer = await fetch(`${url}/v1/embeddings`, {
  method: "POST",
  headers: { accept: "application/octet-stream" },
  body: JSON.stringify({ input: ["The ferry leaves at seven.", "When does the boat go?"] }),
});
if (!answer.ok) throw new Error((await answer.json()).error.message);

const [count, dimensions] = answer.headers.get("x-embedline-shape").split(",").map(Number);
const rows = new Float32Array(await answer.arrayBuffer()); // row i begins at i * dimensions
let cosine = 0; // rows have length 1
for (let i = 0; i < dimensions; i++) cosine += rows[i] * rows[dimensions + i];
console.log(count, dimensions, cosine.toFixed(2));

// Prints:
// 2 384 0.48
