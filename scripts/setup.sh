# shellcheck shell=bash
# Installs what building and testing need, and nothing that is there. Sourced by ./dev and scripts/test.sh.

NODE_NEEDED=20.19
RUST_NEEDED=1.90
# Absolute, because chores change folders.
case ${CARGO_TARGET_DIR:-} in
  '') target=$PWD/target ;;
  /*) target=$CARGO_TARGET_DIR ;;
  *) target=$PWD/$CARGO_TARGET_DIR && export CARGO_TARGET_DIR=$target ;;
esac
export PATH="$target/tools/node_modules/.bin:$HOME/.cargo/bin:$PATH"
export MACOS_TARGET_DIR=$target/macos-check ARM_TARGET_DIR=$target/arm-check

packages=(
  build-essential pkg-config libwebkit2gtk-4.1-dev librsvg2-dev # the window
  webkit2gtk-driver xvfb xauth dbus dbus-x11 fonts-dejavu-core  # its end-to-end test
  rustc-web cargo-web rust-web-src                              # the type check for macOS, the kernels for aarch64
  qemu-user                                                     # runs the kernels' tests for aarch64
  gcc-aarch64-linux-gnu libc6-dev-arm64-cross                   # links them
  python3 python3-pip                                           # fetches the starter model
  clang-19                                                      # runs the Metal kernels in an emulator, for tests only
)

setup() {
  case $(uname) in
    Darwin) have cc || stop "Type: xcode-select --install" ;;
    *) system_packages ;;
  esac
  newer_than "$RUST_NEEDED" "$(version_of cargo)" ||
    stop "Rust $RUST_NEEDED or newer is needed. Type: curl --proto '=https' -sSf https://sh.rustup.rs | sh -s -- -y"
  node_and_npm
  have cargo-nextest || cargo install --locked cargo-nextest
}

system_packages() {
  have apt-get || { echo "setup: no apt-get here; make sure these are installed: ${packages[*]}" >&2; return; }
  local missing=() package
  for package in "${packages[@]}"; do
    case $package in # what came another way is as good
      python3 | python3-pip) python3 -m pip --version >/dev/null 2>&1 && continue ;;
      clang-19) have clang++-19 && continue ;;
    esac
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  as_root apt-get update -qq
  local known=()
  for package in "${missing[@]}"; do # not every release has the compiler that check-macos needs
    if apt-cache show "$package" >/dev/null 2>&1; then known+=("$package"); else echo "setup: this system has no $package"; fi
  done
  apt_install "${known[@]}"
}

# Debian's own node is too old, but its npm can fetch a newer one into the target folder.
node_and_npm() {
  newer_than "$NODE_NEEDED" "$(version_of node)" && have npm && return
  [ "$(uname)" != Darwin ] || stop "Node $NODE_NEEDED or newer is needed. Type: brew install node"
  have npm || apt_install nodejs npm
  echo "setup: fetching node 22 into $target/tools"
  npm install --silent --no-audit --no-fund --prefix "$target/tools" node@22
}

apt_install() {
  [ $# -gt 0 ] || return 0
  echo "setup: installing $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

have() { command -v "$1" >/dev/null 2>&1; }

stop() {
  echo "setup: $*" >&2
  exit 1
}

version_of() { { command "$1" --version 2>/dev/null || true; } | grep -oE '[0-9]+\.[0-9]+' | head -n 1; }

newer_than() { [ -n "$2" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif have sudo; then sudo "$@"; else stop "as root, type: $*"; fi
}
