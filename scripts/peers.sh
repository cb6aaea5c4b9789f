#!/usr/bin/env bash
# The starter's trunk beside its peers on the same weights and threads, runs taken in turn (./dev peers):
# llama.cpp on the very GGUF it was made from, mlx-lm on the CPU on the starter's own folder.
# They come from PyPI into .peers/. llama.cpp is built without AMX: that path dies of an illegal instruction on some virtual machines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export FORETOKEN_STARTER=${FORETOKEN_STARTER:-$PWD/.starter}
target=${CARGO_TARGET_DIR:-target}
gguf=$target/starter-download/SmolLM2-135M-Instruct.Q4_1.gguf
[ -f "$gguf" ] || { echo "peers: $gguf is not there; run ./dev starter in a fresh target folder" >&2; exit 1; }

env=${FORETOKEN_PEERS:-.peers}
[ -x "$env/bin/python" ] || python3 -m venv "$env"

asked=$*
# peer NAME MODULE REQUIREMENT...: installs a peer that is missing, unless --peers leaves it out.
# One that cannot be installed is no reason to stop: peers.py says that it is left out.
peer() {
  local name=$1 module=$2
  shift 2
  case " $asked " in *" --peers"*" $name "*) ;; *" --peers"*) return ;; esac
  "$env/bin/python" -c "import $module" 2>/dev/null && return
  echo "peers: installing $name ($*), once; this takes minutes" >&2
  "$env/bin/python" -m pip install --quiet "$@" >&2 || true
}

on='AVX AVX2 FMA F16C BMI2'
grep -q avx512_vnni /proc/cpuinfo && on="$on AVX512 AVX512_VBMI AVX512_VNNI AVX512_BF16"
flags='-DGGML_NATIVE=OFF -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF -DGGML_AMX_BF16=OFF -DLLAVA_BUILD=OFF'
for f in $on; do flags="$flags -DGGML_$f=ON"; done
CMAKE_ARGS=$flags peer llama.cpp llama_cpp llama-cpp-python==0.3.36
peer mlx-lm mlx_lm 'mlx[cpu]==0.32.4' mlx-lm==0.32.2

exec "$env/bin/python" scripts/peers.py "$target/debug/foretoken" "$gguf" "$FORETOKEN_STARTER" "$@"
