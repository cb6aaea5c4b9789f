#!/usr/bin/env bash
# Builds the kernels' unit tests for aarch64 Linux and runs them in an emulator, on a machine of another kind: NEON's results
# are compared with the plain lanes', bit for bit. No speed can be learned from it.
#
#   check-arm.sh [FILTER]      only the tests whose name contains FILTER, on the full CPU
#
# Needs (Debian): what check-macos.sh needs, and qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross.
# Like check-macos.sh it uses Debian's compiler with the standard library's source, and a target folder of its own (ARM_TARGET_DIR).
set -uo pipefail
triple=aarch64-unknown-linux-gnu
system=/usr/aarch64-linux-gnu
for tool in /usr/bin/rustc /usr/bin/cargo qemu-aarch64 aarch64-linux-gnu-gcc; do
  command -v "$tool" >/dev/null || { echo "check-arm: $tool is missing" >&2; exit 2; }
done

export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=${ARM_TARGET_DIR:-target/arm-check}
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
unset RUSTUP_TOOLCHAIN CARGO RUSTC_WRAPPER RUSTFLAGS CARGO_BUILD_RUSTFLAGS FORETOKEN_SIMD FORETOKEN_THREADS
tests=(/usr/bin/cargo test --locked -Zbuild-std --target "$triple" -p foretoken-kernels --lib)
# Candle and what it brings: the tests call nothing of it that takes time, and optimising it does.
for package in candle-core tokenizers regex-automata fancy-regex aho-corasick memchr hashbrown; do
  tests+=(--config "profile.dev.package.$package.opt-level=0")
done
# Not optimised, its f16 instructions are left outside of the functions that say they need them. They are not run.
tests+=(-Zprofile-rustflags --config 'profile.dev.package.gemm-f16.rustflags=["-Ctarget-feature=+fp16"]')

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0

# on CPU WHAT [NAME...] -- FILTER...: on that CPU, whose vector instructions must be WHAT; the tests NAME must be among those
# that passed, because a run that leaves NEON out also ends well.
on() {
  local cpu=$1 names=() name
  export FORETOKEN_SIMD_EXPECTED=$2
  shift 2
  while [ "$1" != -- ]; do names+=("$1") && shift; done
  echo "check-arm: $cpu, ${FORETOKEN_SIMD:-every instruction}"
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $system -cpu $cpu" "${tests[@]}" "$@" 2>&1 |
    tee "$log" || failed=1
  for name in "${names[@]}"; do
    grep -q "^test $name ... ok" "$log" || { echo "check-arm: $name did not pass on $cpu" >&2 && failed=1; }
  done
}

chosen=lanes::tests::the_instructions_are_those_that_the_run_expects
lanes=(lanes::tests::backends_agree_bit_for_bit lanes::tests::neon_knows_every_f16)
products=(linear::int8::tests::backends_agree_bit_for_bit linear::int8::tests::the_backend_follows_the_instructions)
dot='NEON with dot product'
if [ $# -gt 0 ]; then
  on max "$dot" -- -- "$@"
else
  on max "$dot" "$chosen" "${lanes[@]}" "${products[@]}" --
  # Every M1 has the dot product; small boards do not.
  on cortex-a72 NEON "$chosen" "${lanes[@]}" "${products[@]}" -- -- lanes:: linear::int8::
  FORETOKEN_SIMD=portable on max portable "$chosen" "${products[1]}" -- -- "$chosen" "${products[1]}"
fi
exit "$failed"
