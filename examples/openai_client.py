"""Embeddings with the OpenAI SDK: pip install openai"""

import os

from openai import OpenAI

url = os.environ.get("EMBEDLINE_URL", "http://localhost:8080")
client = OpenAI(base_url=f"{url}/v1", api_key="not-needed")

answer = client.embeddings.create(
    model="all-MiniLM-L6-v2",
    input=["The ferry leaves at seven.", "When does the boat go?"],
)
print(len(answer.data), len(answer.data[0].embedding), answer.usage.prompt_tokens)

# Prints:
# 2 384 16
