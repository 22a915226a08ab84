#!/bin/sh
# Builds llama.cpp's server for this machine and converts a model for it: make_llama.sh FOLDER ENVIRONMENT MODEL
# ENVIRONMENT is the one of make_env.sh; MODEL is a model's folder. The source comes inside llama-cpp-python's source package.
# Where a compiler, cmake or the source is missing, one line says so and nothing is made. JOBS=2: compilers at a time.
set -eu
folder="$1" python="$2/bin/python" model="$3"
package=llama_cpp_python-0.3.36
leave_out() {
	echo "llama.cpp is left out: $1" >&2
	exit 0
}

mkdir -p "$folder"
for tool in cmake c++; do
	command -v "$tool" >/dev/null || leave_out "there is no $tool"
done
if [ ! -x "$folder/bin/llama-server" ]; then
	if [ ! -d "$folder/$package" ]; then
		"$python" -m pip download --disable-pip-version-check --quiet --no-deps --no-binary llama-cpp-python --dest "$folder" \
			llama-cpp-python==0.3.36 || leave_out "its source can't be had"
		tar -C "$folder" -xzf "$folder/$package.tar.gz" "$package/vendor/llama.cpp"
	fi
	cmake -S "$folder/$package/vendor/llama.cpp" -B "$folder" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
		-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF \
		-DLLAMA_USE_PREBUILT_UI=OFF >"$folder/cmake.log" 2>&1 || leave_out "cmake failed, see $folder/cmake.log"
	cmake --build "$folder" --target llama-server --parallel "${JOBS:-2}" >"$folder/build.log" 2>&1 ||
		leave_out "it does not compile, see $folder/build.log"
fi
for type in f32 f16 bf16 q8_0; do
	[ ! -f "$folder/$type.gguf" ] || continue
	"$python" "$folder/$package/vendor/llama.cpp/convert_hf_to_gguf.py" "$model" --outtype "$type" \
		--outfile "$folder/unfinished.gguf" >"$folder/convert.log" 2>&1 ||
		leave_out "the model can't be converted, see $folder/convert.log"
	mv "$folder/unfinished.gguf" "$folder/$type.gguf"
done
