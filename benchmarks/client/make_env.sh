#!/bin/sh
# Makes the virtual environment with the clients that are compared: make_env.sh FOLDER (PYTHON=python3.11)
set -eu
folder="$1"
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --disable-pip-version-check --quiet \
	numpy==2.4.6 openai==3.54.0 baseten-performance-client==0.1.16 aiohttp==3.14.5 orjson==3.13.0
