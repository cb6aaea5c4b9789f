#!/usr/bin/env bash
# Draws icons/*.png and icons/icon.icns from icons/icon.svg.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
npx --yes @tauri-apps/cli@2.12.5 icon icons/icon.svg --output "$made"
cp "$made/icon.icns" icons/icon.icns
for size in 32 128 256 512 1024; do
  npx --yes @tauri-apps/cli@2.12.5 icon icons/icon.svg --output "$made" --png "$size"
  cp "$made/${size}x${size}.png" "icons/$size.png"
done
