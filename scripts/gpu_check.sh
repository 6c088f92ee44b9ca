#!/usr/bin/env bash
# One command that proves the GPU paths on the machine at hand: attention, graphs, the model, all modes, several GPUs, real shapes.
# Needs Python 3.10 or newer with the package's requirements; no network, no weights. PYTHON=python3.12 scripts/gpu_check.sh takes another
# interpreter; --twin runs everything at tiny sizes on the CPU; --help says the rest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
exec "${PYTHON:-python3}" scripts/gpu_check.py "$@"
