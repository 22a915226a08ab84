#!/bin/sh
# Makes the virtual environment of sentence-transformers with its OpenVINO backend: make_openvino.sh FOLDER
# PYTHON=python3.11 and TORCH_INDEX=https://... as in the Makefile.
set -eu
folder="$1"
"${PYTHON:-python3}" -m venv "$folder"
pip="$folder/bin/python -m pip install --disable-pip-version-check --quiet"
$pip ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0
$pip 'sentence-transformers[openvino]==6.2.0' torch==2.13.0 fastapi orjson uvicorn
# what comes with it is built for another torch, and then transformers can't be imported
"$folder/bin/python" -m pip uninstall --quiet --yes torchvision
"$folder/bin/python" -c 'import optimum.intel'
