#!/bin/sh
# Makes the virtual environment in which infinity-emb 0.0.78, ONNX Runtime and llama.cpp's converter work: make_env.sh FOLDER
# PYTHON=python3.11 and TORCH_INDEX=https://... as in the Makefile. torch goes first, or an older requirement would choose it.
set -eu
folder="$1"
"${PYTHON:-python3}" -m venv "$folder"
pip="$folder/bin/python -m pip install --disable-pip-version-check --quiet"
$pip ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0
$pip 'infinity-emb[server,torch,optimum]==0.0.78' torch==2.13.0 transformers==4.57.6 sentence-transformers==3.4.1 \
	optimum==2.1.0 optimum-onnx==0.1.0 onnxruntime==1.32.0 typer==0.12.5 click==8.1.8 numpy==1.26.4
"$folder/bin/infinity_emb" v2 --help >/dev/null
"$folder/bin/optimum-cli" export onnx --help >/dev/null
