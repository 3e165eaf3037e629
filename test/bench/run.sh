#!/bin/bash
# Builds nothing ("make bench" has): measures us and our peers in one run.
# Arguments go to the program: run.sh -rounds 5 -only read
set -euo pipefail
cd "$(dirname "$0")/../.."
# Static, because it starts itself in containers of any image.
CGO_ENABLED=0 go run ./test/bench -gangway bin/gangway "$@"
