#!/usr/bin/env bash
# Check the Triton kernels on this machine's GPU, measure what docs/kernels.md wants to know, and print
# a table of the targets.
#
#   benchmarks/gpu.sh [FOLDER]     rows and log go to FOLDER (default: results/bench)
#
# It ends within nine minutes. Every part has a limit of its own, and what a part leaves goes to the
# later ones; a part for which no time is left is named, and a part that fails ends no other. The parts
# that decide whether the kernels are done come first, and the sum of their limits is the time that
# there is. Compiling is most of a first run: Triton's kernels are compiled side by side, but compiling
# the paper's scan (--compiled) takes minutes for every layer and length, so a layer of 33M parameters
# at m = 4 comes when all else that decides has been measured, and one of hidden size 768 last.
#
# benchmarks/gpu_needs.py lists what it needs in the Python named by PYTHON (default: python3), and says
# how to bring what is missing. flash-linear-attention is used if it is there. Nothing is downloaded.
#
#   WHEELS=FOLDER            unpack the wheels of this folder and use their packages; unpacked packages
#                            may also be on PYTHONPATH
#   STATEMIX_COMMIT=COMMIT   the commit of a copy without its repository, for the rows and their name
#   GPU_SECONDS=N            end earlier, or later
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=${1:-results/bench}
# Ending a part takes up to 5 s, and the table 12.
ends=$((${GPU_SECONDS:-538} - 17))
mkdir -p "$folder"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
# Kernels that others have compiled here must not make this run shorter.
export TRITON_CACHE_DIR="$scratch/triton" TORCHINDUCTOR_CACHE_DIR="$scratch/inductor"
# Kernels of peers that were tuned side by side are tuned again when they are measured.
export FLA_CACHE_RESULTS=0
commit=${STATEMIX_COMMIT:-}
# Another project's repository may surround a copy.
git ls-files --error-unmatch benchmarks/gpu.sh >/dev/null 2>&1 && commit=$(git rev-parse HEAD)
if [[ ! ${commit:-0000000} =~ ^[0-9a-f]{7,64}$ ]]; then
  echo "STATEMIX_COMMIT must be a commit, got $commit"
  exit 2
fi
export STATEMIX_COMMIT=$commit
name=gpu-${commit:0:7}
[ -n "$commit" ] || name=gpu-unknown
exec > >(tee "$folder/$name.log") 2>&1
rows=$folder/$name.jsonl
proofs=$folder/$name-proofs.log
tests=$folder/$name-tests.log
failed=0

for wheel in ${WHEELS:+"$WHEELS"/*.whl}; do
  "$python" -m zipfile -e "$wheel" "$scratch/packages" || exit 2
done
# That forgets which files are programs: the tools of Triton.
find "$scratch" -path '*/bin/*' -type f -exec chmod +x {} +
[ -n "${WHEELS:-}" ] && PYTHONPATH=$PYTHONPATH:$scratch/packages
"$python" benchmarks/gpu_needs.py || exit 2

part() { # SECONDS TITLE COMMAND...
  local limit=$1 title=$2 left=$((ends - SECONDS))
  shift 2
  echo
  echo "== $title"
  if [ $left -lt 1 ]; then
    echo "== $title: not started, no time is left"
    failed=1
    return 1
  fi
  [ $left -lt "$limit" ] && limit=$left
  timeout --kill-after=5 "$limit" "$@"
  local code=$?
  if [ $code -ne 0 ]; then
    echo "== $title: exit status $code$([ $code -eq 124 ] && echo ", stopped after $limit s")"
    failed=1
  fi
  return $code
}

bench() { # SECONDS TITLE ARGUMENTS...
  local limit=$1 left=$((ends - SECONDS))
  [ $left -lt "$limit" ] && limit=$left
  # Six seconds are for imports, and a fifth of the time for the timed calls of what is ready.
  local ready=$((limit - limit / 5 - 6))
  [ $ready -lt 1 ] && ready=1
  part "$1" "$2" "$python" -m statemix bench "${@:3}" --limit-s $ready --output "$rows"
}

warming=()
warm() { # ARGUMENTS...
  warming+=("$*")
}

gpu=(--device cuda --dtype bfloat16)
operators=(ops "${gpu[@]}" --graphs --recurrences bd_lru)
shapes=(8x2048x768x1 8x2048x384x2 8x2048x256x3 8x2048x192x4 8x2048x160x5 8x2048x128x6 8x2048x96x8 8x2048x48x16)
# Those with a target.
peers=(gated_delta_net mamba2 gated_delta_product)
lags=(ops "${gpu[@]}" --recurrences h_lru --orders 16)
layers=(layers "${gpu[@]}" --hidden-size 1024 --batch-size 8 --length 2048)
# Each has 33M parameters, and a multiple of 16 blocks or channels. At m = 16 that takes another width.
blocks=("bd_lru num_blocks=8064 block_size=1" "bd_lru num_blocks=3216 block_size=2"
  "bd_lru num_blocks=1792 block_size=3" "bd_lru num_blocks=1152 block_size=4" "bd_lru num_blocks=800 block_size=5"
  "bd_lru num_blocks=592 block_size=6" "bd_lru num_blocks=368 block_size=8"
  "h_lru num_channels=1696 order=16 readout=current")
blocks=("${blocks[@]/%/ backend=triton}")
few=(layers "${gpu[@]}" --hidden-size 768 --batch-size 2 --length 2048)
widest=(layers "${gpu[@]}" --hidden-size 960 --batch-size 8 --length 2048)
m16="bd_lru num_blocks=112 block_size=16 backend=triton"
others=("delta_net num_heads=63 head_dim=128 use_forget_gate=True" "mamba2 expand=10"
  "delta_product num_heads=25 head_dim=128 use_forget_gate=True")
another="delta_net num_heads=63 head_dim=128"
m4="bd_lru num_blocks=1152 block_size=4"
m4_triton="$m4 backend=triton"
lag="h_lru num_channels=768 order=16"

part 5 "GPU" nvidia-smi
part 10 "backends" "$python" -m statemix doctor
# Importing it takes seconds.
"$python" -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec("fla") is None)' ||
  echo "flash-linear-attention is not installed: its peers are skipped, and layers run PyTorch's forms"
# Before anything else is compiled, and alone.
part 28 "cold start" "$python" benchmarks/cold_start.py "$rows"

# Compiling keeps a core busy, and there is one process for each.
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
[ "$cores" -gt 16 ] && cores=16
part 40 "gradients at every m, against the float64 reference" \
  "$python" benchmarks/gradients.py "$rows" --workers "$cores"
# For the gradients 304 kernels are compiled, for the proofs about 370, and for the other tests about
# 1,100; the seconds of each are in results/bench/kernels-*.jsonl. Every test is printed when it
# has run, so that those are known that ran before the time was over.
beside=()
of_sizes="16_bits_are_near or never_read_back"
"$python" -c 'import xdist' 2>/dev/null && beside=(-n "$cores" --dist worksteal)
part 60 "what only a GPU can prove: steps, graphs, no synchronisation, 16 bits at every m" \
  "$python" -m pytest -v -W default "${beside[@]}" tests/ops/triton/test_steps.py tests/ops/triton/test_sizes.py \
  -k "test_steps or $of_sizes" > >(tee "$proofs")
part 90 "correctness against the float64 reference" \
  "$python" -m pytest -v -W default "${beside[@]}" tests/ops/triton/test_kernels.py > >(tee "$tests")

# Triton compiles the kernels of a process one after another, each for up to three seconds, so every
# problem has a process of its own, what takes longest first. Its times are thrown away.
warm "${widest[@]}" --layers $m16
for peer in "${peers[@]}"; do warm "${operators[@]}" --providers --shapes 8x2048x192x4 --peers "$peer"; done
for layer in "${others[@]}"; do warm "${layers[@]}" --layers $layer; done
warm "${lags[@]}" --providers statemix --shapes 8x2048x768 2x2048x768
warm "${few[@]}" --layers $lag backend=triton
for ((place = ${#blocks[@]} - 1; place >= 0; place--)); do warm "${layers[@]}" --layers ${blocks[place]}; done
for ((place = ${#shapes[@]} - 1; place >= 0; place--)); do
  warm "${operators[@]}" --providers statemix --shapes "${shapes[place]}"
done
limit=$((ends - SECONDS < 45 ? ends - SECONDS : 45))
[ $limit -gt 0 ] && printf '%s\n' "${warming[@]}" | OMP_NUM_THREADS=1 timeout --kill-after=5 $limit \
  xargs -P "$cores" -I ARGUMENTS sh -c "exec \"\$0\" -m statemix bench ARGUMENTS --rounds 1 --budget-s 0.001" \
  "$python" >/dev/null 2>&1

bench 30 "operators, 16k tokens, 768 entries of state" "${operators[@]}" --shapes "${shapes[@]}" \
  --providers copy statemix --rounds 11 --budget-s 0.5
bench 45 "layers of 33M parameters" "${layers[@]}" --rounds 11 --budget-s 1 --layers ${blocks[*]}
bench 15 "a layer of 33M parameters, m=16" "${widest[@]}" --rounds 11 --budget-s 1 --layers $m16
bench 15 "H-LRU of 768 channels" "${lags[@]}" --graphs --shapes 8x2048x768 \
  --providers copy statemix --rounds 11 --budget-s 0.5
# Of two sequences, because the companion form of 8 takes about 80 GB, and as a graph twice as much.
bench 15 "H-LRU of 768 channels, and the companion form" "${lags[@]}" --shapes 2x2048x768 \
  --providers copy statemix paper --rounds 7 --budget-s 0.5
bench 16 "a layer of H-LRU m=16, and the companion form" "${few[@]}" --rounds 7 --budget-s 0.5 \
  --layers $lag backend=triton $lag backend=associative
part 25 "a million tokens, batch 1" "$python" benchmarks/long_context.py "$rows"
bench 40 "operators of peers, at equal tokens and state" "${operators[@]}" --shapes 8x2048x192x4 \
  --providers copy statemix --peers "${peers[@]}" --rounds 11 --budget-s 0.5
bench 40 "layers of peers, of 33M parameters" "${layers[@]}" --rounds 11 --budget-s 1 \
  --layers $m4_triton ${others[*]}
# Up to here, with 45 s of warming up, the limits add up to the time that there is.
bench 150 "a layer of 33M parameters, compiled as in the paper" "${layers[@]}" --rounds 11 --budget-s 1 --compiled \
  --layers $m4_triton $m4 backend=associative
bench 40 "decoding" decode "${gpu[@]}" --graphs --rounds 11 --budget-s 0.5 --recurrences bd_lru --hidden-sizes 768 \
  --batch-sizes 2048 1 64 --peers delta_net num_heads=6 use_forget_gate=True mamba2 lstm
part 90 "chunks in 16 bits, and other families at every m" "$python" -m pytest -v -W default "${beside[@]}" \
  tests/ops/triton/test_sizes.py tests/ops/triton/test_launch.py -k "not ($of_sizes)"
bench 20 "an operator, the loop and the paper's scan" "${operators[@]}" --shapes 8x2048x192x4 \
  --providers copy statemix torch-loop paper --rounds 7 --budget-s 0.5
bench 30 "operators of other peers" "${operators[@]}" --shapes 8x2048x192x4 \
  --providers copy statemix --peers lstm delta_net --rounds 11 --budget-s 0.5
bench 40 "H-LRU of every order, and the companion form" ops "${gpu[@]}" --recurrences h_lru --orders 1 2 4 8 \
  --shapes 8x2048x768 --providers copy statemix paper --rounds 7 --budget-s 0.5
bench 30 "a long sequence, batch 1, and the length of its chunks" "${operators[@]}" \
  --providers copy statemix --shapes 1x32768x192x4 --chunks 0 64 128 256 512 --rounds 7 --budget-s 0.3
bench 30 "more sequences, and the length of their chunks" "${operators[@]}" \
  --providers copy statemix --shapes 32x1024x192x4 128x512x192x4 --chunks 0 64 128 256 --rounds 7 --budget-s 0.3
bench 60 "layers of hidden size 768, against length and batch" layers "${gpu[@]}" --hidden-size 768 \
  --batch-size 8 1 --length 2048 512 8192 --rounds 7 --budget-s 0.5 --layers \
  bd_lru num_blocks=768 block_size=1 backend=triton bd_lru num_blocks=192 block_size=4 backend=triton \
  bd_lru num_blocks=192 block_size=4 backend=associative mamba2 delta_net num_heads=6
bench 50 "layers of 33M parameters, against length and batch" layers "${gpu[@]}" --hidden-size 1024 \
  --batch-size 8 1 --length 2048 512 --rounds 7 --budget-s 0.5 \
  --layers $m4_triton ${others[*]} $another
bench 30 "128 blocks, against the block size" layers "${gpu[@]}" --hidden-size 128 \
  --batch-size 8 --length 512 --rounds 7 --budget-s 0.5 --layers \
  bd_lru num_blocks=128 block_size=1 backend=triton bd_lru num_blocks=128 block_size=4 backend=triton \
  bd_lru num_blocks=128 block_size=1 backend=associative bd_lru num_blocks=128 block_size=4 backend=associative \
  bd_lru num_blocks=128 block_size=1 backend=loop bd_lru num_blocks=128 block_size=4 backend=loop
bench 150 "a layer of hidden size 768, compiled as in the paper" layers "${gpu[@]}" --hidden-size 768 \
  --batch-size 8 --length 2048 --rounds 7 --budget-s 0.5 --compiled --layers \
  bd_lru num_blocks=192 block_size=4 backend=triton bd_lru num_blocks=192 block_size=4 backend=associative

echo
timeout --kill-after=2 10 "$python" benchmarks/gpu_targets.py "$rows" --tests "$proofs" "$tests" || failed=1
echo
[ $failed -eq 0 ] && echo "all parts ran; rows are in $rows" || echo "some parts did not run; rows are in $rows"
exit $failed
