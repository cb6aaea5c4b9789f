#!/usr/bin/env bash
# The built app in a real window on a virtual screen. Arguments go to nextest, e.g. the name of one test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# One at a time: two windows would compete for two cores, and the measured times would mean nothing.
export RUST_BACKTRACE=0
exec xvfb-run -a -s "-screen 0 1400x900x24" dbus-run-session -- \
  cargo nextest run -p foretoken-e2e --test-threads 1 --no-fail-fast --no-capture "$@"
