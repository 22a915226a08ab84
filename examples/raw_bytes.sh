#!/usr/bin/env bash
# Raw rows with curl: little-endian float32 and nothing else, 4 bytes a number.
set -euo pipefail

url="${EMBEDLINE_URL:-http://localhost:8080}"
rows="$(mktemp)"
trap 'rm "$rows"' EXIT

curl --fail --silent --show-error "$url/v1/embeddings" --output "$rows" --dump-header - \
    --data '{"input": ["The ferry leaves at seven.", "When does the boat go?"], "encoding_format": "bytes"}' |
    grep --ignore-case x-embedline-shape | tr --delete '\r'
wc --bytes <"$rows"

# Prints:
# x-embedline-shape: 2,384
# 3072
