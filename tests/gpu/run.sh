#!/usr/bin/env bash
# Runs one part of the checks on a machine with a GPU:
#
#   bash run.sh first|train|bench|sanitize|profile [--only WORDS] [--seconds N]
#
# Belongs to the folder that `make gpu-pack` makes; its README.md says what each part is for. Requires python3 and the CUDA
# driver; no Rust and no network. Changes no setting of the GPU. Every step has a time limit and the whole part has one too; a
# table comes last. Logs and results go to $OUT (default longhaul-gpu-results). The exit status is 1 if a check failed.
# DEVICE=emu or DEVICE=cpu rehearses a part without a GPU.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
test -e "$here/about.json" || {
    echo "run.sh: $here has no programs: make gpu-pack, then run the run.sh in target/gpu/longhaul-gpu" >&2
    exit 2
}
OUT=${OUT:-$PWD/longhaul-gpu-results}
WORK=${WORK:-${TMPDIR:-/tmp}/longhaul-gpu-$(id -u)}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
mkdir -p "$WORK"
test -O "$WORK" || {
    echo "run.sh: $WORK belongs to another user; set WORK to a folder of yours" >&2
    exit 2
}
chmod 700 "$WORK"
export OUT WORK
export PATH=$here/bin:$PATH:/usr/local/cuda/bin:/usr/local/nvidia/bin
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
exec python3 "$here/python/checks.py" "$@"
