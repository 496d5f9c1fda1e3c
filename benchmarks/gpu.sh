#!/usr/bin/env bash
# Check the Triton kernels on this machine's GPU, and measure what docs/kernels.md wants to know.
# Takes at most nine minutes; every part has a limit of its own, and a part that fails ends no other.
#
#   benchmarks/gpu.sh [FOLDER]     rows and log go to FOLDER (default: results/bench)
#
# Needs Statemix's dependencies, Triton, pytest and hypothesis in the Python named by PYTHON
# (default: python3), and uses flash-linear-attention if it is there. Nothing is downloaded.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=${1:-results/bench}
mkdir -p "$folder"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
name=gpu-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
exec > >(tee "$folder/$name.log") 2>&1
failed=0

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "benchmarks/gpu.sh needs a GPU that PyTorch can use"
  exit 2
fi

part() { # SECONDS TITLE COMMAND...
  local limit=$1 title=$2
  shift 2
  echo
  echo "== $title"
  timeout --kill-after=5 "$limit" "$@"
  local code=$?
  if [ $code -ne 0 ]; then
    echo "== $title: exit status $code$([ $code -eq 124 ] && echo ", stopped after $limit s")"
    failed=1
  fi
}

statemix() { "$python" -m statemix "$@"; }
export python
export -f statemix

part 10 "GPU" nvidia-smi
part 30 "backends" bash -c 'statemix doctor'
# Compiling takes longer than running: side by side, if pytest-xdist is there.
beside=$("$python" -c 'import xdist' 2>/dev/null && echo "-n 8")
part 150 "correctness against the float64 reference" "$python" -m pytest -q $beside tests/ops/triton/test_kernels.py
rows=$folder/$name.jsonl
export rows
part 110 "operators, 16k tokens, 768 entries of state" bash -c '
  statemix bench ops --device cuda --graphs --dtype bfloat16 --rounds 11 --budget-s 0.5 \
    --providers copy statemix paper --output "$rows" --shapes 8x2048x768x1 8x2048x384x2 8x2048x256x3 \
    8x2048x192x4 8x2048x154x5 8x2048x128x6 8x2048x96x8 8x2048x48x16'
part 40 "a long sequence, batch 1" bash -c '
  statemix bench ops --device cuda --graphs --dtype bfloat16 --rounds 7 --budget-s 0.5 \
    --recurrences bd_lru --providers copy statemix --output "$rows" --shapes 1x32768x192x4'
part 100 "layers of 33M parameters" bash -c '
  statemix bench layers --device cuda --dtype bfloat16 --rounds 11 --budget-s 1 --output "$rows" \
    --hidden-size 1024 --batch-size 8 --length 2048 --layers \
    bd_lru num_blocks=8056 block_size=1 backend=triton bd_lru num_blocks=3224 block_size=2 backend=triton \
    bd_lru num_blocks=1152 block_size=4 backend=triton bd_lru num_blocks=368 block_size=8 backend=triton \
    bd_lru num_blocks=106 block_size=16 backend=triton h_lru num_channels=1696 order=16 readout=current backend=triton \
    mamba2 expand=10 delta_net num_heads=63 head_dim=128 use_forget_gate=True \
    delta_product num_heads=25 head_dim=128'
part 40 "decoding" bash -c '
  statemix bench decode --device cuda --graphs --rounds 11 --budget-s 0.5 --output "$rows" \
    --hidden-sizes 768 --batch-sizes 1 64 2048 --peers lstm delta_net num_heads=6'
part 50 "a million tokens, batch 1" "$python" benchmarks/long_context.py "$rows"

echo
[ $failed -eq 0 ] && echo "all parts ran; rows are in $rows" || echo "some parts failed; rows are in $rows"
exit $failed
