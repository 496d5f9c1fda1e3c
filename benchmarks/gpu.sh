#!/usr/bin/env bash
# Check and measure the kernels on this machine's GPU, in parts that each end within four minutes:
#
#   benchmarks/gpu.sh PART [FOLDER]     rows and log go to FOLDER (default: laboratory/results/bench)
#
# Parts, the most valuable first: check (kernels against float64), layers and operators (beside
# flash-linear-attention), shapes (lengths of chunks and launches), language (tokens per second of
# language models of 140M parameters). "all" runs every part.
#
# A measurement that fails or exceeds its time does not stop the others; the exit status is then 1.
# PYTHON names the interpreter (default: python3). It needs Triton and pytest. Peers are measured if
# flash-linear-attention is installed (pip install 'statemix[peers]'). STATEMIX_COMMIT names the commit
# if the tree was copied without its repository.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
part=${1:-}
folder=${2:-laboratory/results/bench}
if [[ ! " check layers operators shapes language all " == *" $part "* ]]; then
  echo "usage: benchmarks/gpu.sh check|layers|operators|shapes|language|all [FOLDER]" >&2
  exit 2
fi
# Nothing need be installed: the commands of the laboratory are found by these entry points.
entries=build/gpu/statemix_lab-0.dist-info
mkdir -p "$entries"
sed -n '/entry-points.*commands/,/^$/s/.*commands"]/[statemix.commands]/p;/^bench = /p' laboratory/pyproject.toml |
  tr -d '"' >"$entries/entry_points.txt"
export PYTHONPATH="$PWD/src:$PWD/laboratory/src:$PWD/build/gpu${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
commit=${STATEMIX_COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
name=gpu-${commit:0:7}
rows=$folder/$name.jsonl
mkdir -p "$folder"
exec > >(tee -a "$folder/$name.log") 2>&1
failed=0

run() { # SECONDS TITLE COMMAND...
  echo
  echo "== $2"
  timeout --kill-after=5 "$1" "${@:3}"
  local code=$?
  [ $code -eq 0 ] && return
  echo "== $2: exit status $code$([ $code -eq 124 ] && echo ", stopped after $1 s")"
  failed=1
}

bench() { # SECONDS TITLE ARGUMENTS...: providers that are not compiled in two thirds of the time fail
  run "$1" "$2" "$python" -m statemix bench "${@:3}" --device cuda --dtype bfloat16 \
    --limit-s $(($1 * 2 / 3)) --rounds 11 --budget-s 0.5 --output "$rows"
}

tests() { # SECONDS TITLE ARGUMENTS...
  run "$1" "$2" "$python" -m pytest -q -W default "${@:3}"
}

shapes=(8x2048x768x1 8x2048x384x2 8x2048x256x3 8x2048x192x4 8x2048x160x5 8x2048x128x6 8x2048x96x8 8x2048x48x16)
layers=(layers --hidden-size 1024 --batch-size 8 --length 2048)

check() {
  run 60 "doctor" "$python" -m statemix doctor --check
  tests 80 "steps, CUDA graphs, no synchronisation" \
    tests/ops/triton/test_steps.py
  tests 90 "operators against the float64 reference, 16 bits at every block size" tests/ops/triton/test_kernels.py \
    tests/ops/triton/test_launch.py tests/ops/test_selective_scan.py
}

layers() {
  bench 140 "layers of 33M parameters" "${layers[@]}" --layers \
    bd_lru num_blocks=8064 block_size=1 backend=triton bd_lru num_blocks=3216 block_size=2 backend=triton \
    bd_lru num_blocks=1152 block_size=4 backend=triton bd_lru num_blocks=368 block_size=8 backend=triton \
    mamba2 expand=10 delta_net num_heads=63 head_dim=128 use_forget_gate=True \
    delta_product num_heads=25 head_dim=128 use_forget_gate=True
  bench 90 "layers of hidden size 768, against length" layers --hidden-size 768 --length 512 2048 8192 --layers \
    bd_lru num_blocks=192 block_size=4 backend=triton mamba2 delta_net num_heads=6
}

operators() {
  bench 70 "BD-LRU, 16k tokens, 768 entries of state" ops --graphs --recurrences bd_lru \
    --shapes "${shapes[@]}" --providers copy statemix
  bench 60 "operators of other layers" ops --graphs --recurrences bd_lru --shapes 8x2048x192x4 \
    --providers copy statemix torch-loop paper --peers lstm mamba2 delta_net gated_delta_net gated_delta_product
  # The companion form of two sequences takes 20 GB at order 16.
  bench 60 "H-LRU and the companion form" ops --recurrences h_lru --orders 1 2 4 8 16 \
    --shapes 2x2048x768 --providers copy statemix paper
  bench 40 "decoding" decode --graphs --recurrences bd_lru --hidden-sizes 768 --batch-sizes 1 64 2048 \
    --peers delta_net num_heads=6 use_forget_gate=True mamba2 lstm
}

shapes() {
  bench 110 "lengths of chunks" ops --graphs --recurrences bd_lru --shapes 1x32768x192x4 32x1024x192x4 \
    --providers copy statemix --chunks 0 64 128 256
  bench 120 "a layer of 33M parameters, compiled as in the paper" "${layers[@]}" --compiled --layers \
    bd_lru num_blocks=1152 block_size=4 backend=triton bd_lru num_blocks=1152 block_size=4 backend=associative
}

language() {
  bench 230 "language models of 140M parameters" language --size paper --contexts 2048 \
    --models "BD-LRU m=4" Transformer "BD-LRU m=1" "H-LRU m=4"
}

run 10 "GPU" nvidia-smi
for name_of_part in check layers operators shapes language; do
  if [ "$part" = "$name_of_part" ] || [ "$part" = all ]; then "$name_of_part"; fi
done

echo
echo "$([ $failed -eq 0 ] && echo "everything ran" || echo "something failed"); rows are in $rows"
exit $failed
