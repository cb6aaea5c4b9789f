#!/usr/bin/env bash
# Foretoken.app and its dmg with the starter model inside. Unsigned unless APPLE_SIGNING_IDENTITY is set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ "$(uname)" = Darwin ] || { echo "bundle: a Mac app can only be bundled on a Mac" >&2; exit 1; }
[ -f .starter/starter.stamp ] || { echo "bundle: make the starter model first: ./dev starter" >&2; exit 1; }
npm --prefix ui ci --no-audit --no-fund
npm --prefix ui run build
cd src-tauri
exec npx --yes @tauri-apps/cli@2.12.5 build --config tauri.bundle.conf.json "$@"
