#!/usr/bin/env bash
# Every check there is, in an order that builds nothing twice. Goes on after a failure, so that one run tells all.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. scripts/setup.sh

log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
export NO_COLOR=1 CARGO_TERM_COLOR=never
passed=0 failed=0 broken=()

# part NAME COUNTER COMMAND...: runs it, and adds what COUNTER reads from its output as "passed failed".
part() {
  local name=$1 counter=$2 ok=0 bad=0 status=0 began=$SECONDS
  shift 2
  echo "== $name"
  "$@" 2>&1 | tee "$log/out" || status=$?
  read -r ok bad < <("$counter" "$status")
  # A part that fails without naming a failed test (it did not build, it crashed) is one failure.
  [ "$status" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
  passed=$((passed + ok)) failed=$((failed + bad))
  [ "$bad" -eq 0 ] || broken+=("$name")
  echo "== $name: $ok passed, $bad failed, $((SECONDS - began)) s"
}

one() { if [ "$1" -eq 0 ]; then echo 1 0; else echo 0 1; fi; }

# "Summary [ 1.2s] 45 tests run: 44 passed (1 slow), 1 failed, 2 skipped"; "44/45 tests run" when it was cut short.
nextest() {
  sed -nE 's|.*Summary \[.*\] +([0-9]+/)?([0-9]+) tests? run: ([0-9]+) passed.*|\2 \3|p' "$log/out" | tail -n 1 |
    awk '{ print $2, $1 - $2; seen = 1 } END { if (!seen) print 0, 1 }'
}

# Both: a summary that cannot be found is a failure, not a silence.
# "Tests  1 failed | 11 passed (12)"
vitest() {
  sed 's/\x1b\[[0-9;]*m//g' "$log/out" | grep -E '^ *Tests +' | tail -n 1 | awk '
    { for (i = 2; i <= NF; i++) { if ($i == "passed") p = $(i - 1); if ($i == "failed") f = $(i - 1) } }
    END { print p + 0, p + f ? f + 0 : 1 }'
}

# "test result: ok. 3 passed; 0 failed; ..." once per run
libtest() { awk '/^test result:/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log/out"; }

setup || exit 1
part "window: packages" one npm --prefix ui ci --no-audit --no-fund
part "window: types" one npm --prefix ui run check
part "window: tests" vitest npm --prefix ui test
# By the newcomer's way, from a folder without them.
rm -rf ui/dist
part "window: build" one ./dev ui
part "rust: format" one cargo fmt --all --check
# Programs and tests in one call: the same features for both, so nothing is compiled a second time.
part "rust: build" one cargo build --all-targets
part "starter model" one "$target/debug/xtask" starter
# The Metal kernels run in an emulator that needs Linux's clang and has never run on a Mac, where they run on the GPU instead.
emulated=(-p metal-emu -p metal-emu-build -p foretoken-kernels-emu)
everything=(--workspace --exclude foretoken-e2e)
if [ "$(uname)" = Linux ]; then
  # What the shaders' lints and the address-space check find is an error.
  export METAL_EMU_STRICT=1
  part "metal: kernels in the emulator" nextest cargo nextest run "${emulated[@]}" --no-fail-fast
fi
everything+=(--exclude metal-emu --exclude metal-emu-build --exclude foretoken-kernels-emu)
# One kernel thread a test: nextest already runs as many tests as there are cores. The kernels' own tests want them all.
suite=(cargo nextest run "${everything[@]}" --no-fail-fast)
part "rust: kernel tests" nextest "${suite[@]}" -E 'package(foretoken-kernels)' --test-threads 1
part "rust: tests" nextest env FORETOKEN_THREADS=1 "${suite[@]}" -E 'not package(foretoken-kernels)'
if [ "$(uname)" = Linux ]; then
  part "arm: kernels in an emulator" libtest scripts/check-arm.sh
fi
part "rust: examples in documentation" libtest cargo test --doc "${everything[@]}"
if [ "$(uname)" = Linux ]; then
  part "rust: clippy" one cargo clippy --workspace --all-targets -- -D warnings
else
  part "rust: clippy" one cargo clippy "${everything[@]}" --all-targets -- -D warnings
fi
if [ "$(uname)" = Linux ]; then
  part "window: end to end" nextest scripts/e2e.sh
  # Both in one call: the same features for both, so the standard library and all they share is checked once.
  part "macos: app and command line" one scripts/check-macos.sh -p foretoken-desktop -p foretoken-cli
else
  echo "== left out: the window's end-to-end test needs WebKitWebDriver, which only Linux has"
fi

[ ${#broken[@]} -eq 0 ] || printf 'failed: %s\n' "${broken[@]}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
