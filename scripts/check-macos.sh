#!/usr/bin/env bash
# Copied nearly unchanged from the project's shared tools, where it was proved on its own.
# Type-check a cargo package for Apple-silicon macOS on a Linux machine (no SDK, no linker, nothing is run).
#
#   check-macos.sh -p PACKAGE [more cargo-check arguments...]
#   MACOS_CLIPPY=1 check-macos.sh -p PACKAGE -- -D warnings      # lints instead, needs a clippy of the same compiler
#
# Needs (Debian): apt-get install --no-install-recommends rustc-web cargo-web rust-web-src   (rust-web-clippy for the lints)
# It uses that compiler with the standard library's source (build-std), never rustup's,
# and a target folder of its own (MACOS_TARGET_DIR, default target/macos-check).
#
# Build scripts of crates that compile C for the target (ring, aws-lc-sys, ...) get a stand-in
# compiler that writes empty objects: `cargo check` reads only metadata and never links.
set -euo pipefail
target=${MACOS_TARGET:-aarch64-apple-darwin}
rustc=${MACOS_RUSTC:-/usr/bin/rustc}
cargo=${MACOS_CARGO:-/usr/bin/cargo}
for tool in "$rustc" "$cargo"; do
  [ -x "$tool" ] || { echo "check-macos: $tool is missing; install rustc-web cargo-web rust-web-src" >&2; exit 2; }
done
src="$("$rustc" --print sysroot)/lib/rustlib/src/rust/library"
[ -d "$src" ] || { echo "check-macos: no library source at $src (rust-web-src)" >&2; exit 2; }

# a fixed place: build scripts rerun when the value of CC_... changes
out=${MACOS_TARGET_DIR:-target/macos-check}; mkdir -p "$out/stand-in"; stub=$(cd "$out/stand-in" && pwd)
mkdir -p "$stub/sdk" "$stub/path"   # only path/ goes on PATH: host build scripts still link with the real cc
cat > "$stub/cc" <<'S'
#!/bin/sh
# answers the probes of build scripts; creates whatever output file is asked for
out=; prev=; for a in "$@"; do
  [ "$prev" = -o ] && out=$a
  case $a in
    -E) echo clang; echo "#define __clang__ 1" ;;
    --version|-v) echo "Apple clang version 16.0.0 (stand-in)"; echo "Target: arm64-apple-darwin" ;;
  esac
  prev=$a
done
[ -z "$out" ] || { mkdir -p "$(dirname "$out")"; : > "$out"; }
exit 0
S
cat > "$stub/ar" <<'S'
#!/bin/sh
for a in "$@"; do case $a in *.a) : > "$a" ;; esac; done
exit 0
S
cat > "$stub/path/xcrun" <<S
#!/bin/sh
case "\$*" in *show-sdk-path*) echo "$stub/sdk" ;; *show-sdk-version*) echo 15.0 ;; *) echo "$stub/cc" ;; esac
S
cp "$stub/ar" "$stub/ranlib"
chmod +x "$stub/cc" "$stub/ar" "$stub/ranlib" "$stub/path/xcrun"

t=${target//-/_}
export PATH="$stub/path:$PATH" SDKROOT="$stub/sdk" MACOSX_DEPLOYMENT_TARGET="${MACOSX_DEPLOYMENT_TARGET:-15.0}"
export "CC_$t=$stub/cc" "CXX_$t=$stub/cc" "AR_$t=$stub/ar" "RANLIB_$t=$stub/ranlib"
export RUSTC="$rustc" RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR="$out"
unset RUSTUP_TOOLCHAIN CARGO RUSTC_WRAPPER RUSTFLAGS CARGO_BUILD_RUSTFLAGS
if [ -n "${MACOS_CLIPPY:-}" ]; then   # rustup's cargo-clippy proxy must not be picked up
  CARGO="$cargo" exec "${MACOS_CARGO_CLIPPY:-/usr/bin/cargo-clippy}" clippy -Zbuild-std=std,panic_abort --target "$target" "$@"
fi
check() { "$cargo" check -Zbuild-std=std,panic_abort --target "$target" "$@"; }
check "$@"

# A check that cannot fail proves nothing: a wrong type in a module that only macOS compiles (metal/gpu.rs) must be found.
# A wrapper and not RUSTFLAGS, so that all but the workspace's crates is taken from the run above.
cat > "$stub/wrong" <<'S'
#!/bin/sh
case " $* " in *" --crate-name foretoken_kernels "*) exec "$@" --cfg foretoken_type_error ;; esac
exec "$@"
S
chmod +x "$stub/wrong"
log="$stub/wrong.log"
if CARGO_TERM_COLOR=never RUSTC_WORKSPACE_WRAPPER="$stub/wrong" check "$@" > "$log" 2>&1; then
  echo "check-macos: a type error in crates/kernels/src/metal/gpu.rs was not found; do these packages depend on foretoken-kernels?" >&2
  exit 1
fi
if ! grep -q 'foretoken_type_error_is_found' "$log"; then
  echo "check-macos: the check of a deliberate type error failed for another reason:" >&2
  cat "$log" >&2
  exit 1
fi
echo "check-macos: a deliberate type error was found"
