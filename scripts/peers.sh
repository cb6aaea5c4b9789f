#!/usr/bin/env bash
# The starter's trunk beside llama.cpp on the very GGUF it was made from, same threads, runs taken in turn (./dev peers).
# The peer is built from PyPI into .peers/, without AMX: its AMX path dies of an illegal instruction on some virtual machines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-target}
gguf=$target/starter-download/SmolLM2-135M-Instruct.Q4_1.gguf
[ -f "$gguf" ] || { echo "peers: $gguf is not there; run ./dev starter in a fresh target folder" >&2; exit 1; }

env=${FORETOKEN_PEERS:-.peers}
if ! { [ -x "$env/bin/python" ] && "$env/bin/python" -c 'import llama_cpp' 2>/dev/null; }; then
  echo "peers: building llama.cpp (llama-cpp-python 0.3.36), once; this takes minutes" >&2
  python3 -m venv "$env"
  on='AVX AVX2 FMA F16C BMI2'
  grep -q avx512_vnni /proc/cpuinfo && on="$on AVX512 AVX512_VBMI AVX512_VNNI AVX512_BF16"
  flags='-DGGML_NATIVE=OFF -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF -DGGML_AMX_BF16=OFF -DLLAVA_BUILD=OFF'
  for f in $on; do flags="$flags -DGGML_$f=ON"; done
  CMAKE_ARGS=$flags "$env/bin/pip" install --quiet llama-cpp-python==0.3.36
fi
exec "$env/bin/python" scripts/peers.py "$target/debug/foretoken" "$gguf" "$@"
