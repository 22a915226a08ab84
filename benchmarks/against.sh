#!/bin/sh
# TEI's, vLLM's and our images in turn on one GPU, under the same open-loop traffic; one table at the end.
# Never run on a GPU yet: tests exercise it with stand-ins on a CPU.
#
#   benchmarks/against.sh
#
# Needs Docker with the NVIDIA container toolkit, the images, and a Python with numpy. What can be set, and its default:
#   MODEL             Qwen/Qwen3-Embedding-0.6B   which all of them serve, each with its own defaults
#   SERVERS           tei vllm embedline          in this order
#   GPU               0                           the card's number
#   PORT              8099                        of this machine, on 127.0.0.1
#   RATES             "25 100 400"                requests a second, each a run of its own; Poisson arrivals
#   DURATION          30                          seconds a run, after WARMUP (5)
#   BATCH             1                           texts a request, of mixed lengths: log-normal around 40 tokens
#   PATIENCE          1800                        seconds a server may take to its first answer (it may fetch the model)
#   CACHE             ~/.cache/embedline-against  what containers fetch; a folder for each of them
#   OUT               benchmarks/results          where CSV and table go
#   HF_TOKEN          -                           handed on where it is set
#   TEI_IMAGE, VLLM_IMAGE, EMBEDLINE_IMAGE        see below; pin them to what is to be compared
#   TEI_ARGS, VLLM_ARGS, EMBEDLINE_ARGS           further words for each server
set -u
cd "$(dirname "$0")/.." || exit

MODEL=${MODEL:-Qwen/Qwen3-Embedding-0.6B}
SERVERS=${SERVERS:-tei vllm embedline}
GPU=${GPU:-0}
PORT=${PORT:-8099}
RATES=${RATES:-25 100 400}
CACHE=${CACHE:-${HOME:-/tmp}/.cache/embedline-against}
OUT=${OUT:-benchmarks/results}
TEI_IMAGE=${TEI_IMAGE:-ghcr.io/huggingface/text-embeddings-inference:hopper-1.8}
VLLM_IMAGE=${VLLM_IMAGE:-vllm/vllm-openai:latest}
EMBEDLINE_IMAGE=${EMBEDLINE_IMAGE:-embedline:cuda}
PYTHON=${PYTHON:-python3}
container=

stop() {
    test -z "$container" || docker rm --force "$container" >/dev/null 2>&1
    container=
}
trap stop EXIT
trap 'exit 130' INT TERM

# $1 image, $2 folder in the container where models are kept, $3 port in the container; then words for docker run up to
# "--", then the server's own.
start() {
    image=$1 kept=$2 port=$3
    shift 3
    mkdir -p "$CACHE/$server" && chmod 0777 "$CACHE/$server" # ours runs as an ordinary user of its own
    container=$(docker run --detach --gpus "device=$GPU" --publish "127.0.0.1:$PORT:$port" \
        --volume "$CACHE/$server:$kept" ${HF_TOKEN:+--env HF_TOKEN} --shm-size 1g "$image" "$@")
}

against() {
    "$PYTHON" -m benchmarks.against "$@" --out "$OUT" --port "$PORT" --model "$MODEL" --server "$server" --image "$image"
}

for server in $SERVERS; do
    case $server in
        tei | vllm | embedline) ;;
        *) echo "against.sh: no server is called $server: tei, vllm or embedline" >&2; exit 2 ;;
    esac
done
docker version >/dev/null 2>&1 || { echo "against.sh: docker does not answer; see docker version" >&2; exit 1; }

failed=0
for server in $SERVERS; do
    # shellcheck disable=SC2086 # the words of ..._ARGS are meant to be split
    case $server in
        tei) start "$TEI_IMAGE" /data 80 --model-id "$MODEL" ${TEI_ARGS:-} ;;
        vllm) start "$VLLM_IMAGE" /root/.cache/huggingface 8000 --model "$MODEL" --runner pooling ${VLLM_ARGS:-} ;;
        embedline) start "$EMBEDLINE_IMAGE" /data 80 --model-id "$MODEL" ${EMBEDLINE_ARGS:-} ;;
    esac
    if test -z "$container" || ! against wait --patience "${PATIENCE:-1800}"; then
        echo "against.sh: $server does not answer; its last lines:" >&2
        test -z "$container" || docker logs --tail 20 "$container" >&2
        failed=1
    else
        for rate in $RATES; do
            against load --rate "$rate" --duration "${DURATION:-30}" --warmup "${WARMUP:-5}" --batch "${BATCH:-1}" \
                || failed=1
        done
    fi
    stop
done
"$PYTHON" -m benchmarks.against table --out "$OUT" || failed=1
exit $failed
