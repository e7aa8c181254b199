#!/bin/sh
# Everything that only a GPU can show, in under five minutes, from a bare checkout:
#
#     bench/gpu.sh --wheels DIR             where there is a network: download into DIR what may have to be carried
#     bench/gpu.sh [--carried DIR] [OUT]    build in place, test, verify, measure; results go to OUT (gpu-results)
#
# The machine needs a GPU of compute capability 7.5 or more and its driver, Python 3.11 to 3.13 with pip and numpy, CuPy
# 13 or 14 for the driver's CUDA (cupy-cuda12x, cupy-cuda13x), and PyTorch built for CUDA to compare with. It needs no
# network: what else is missing is installed from DIR, beside everything and for this run alone. Those are small
# packages, listed in `needs` below; CuPy and PyTorch, which are large, must be there. Without a compiler, or where
# PURINE_REF_FAST is set already, nothing is built.
#
# PYTHON chooses the interpreter; for --wheels, FOR is the version that will run, by default its own. Each step has a
# time limit. A step that fails, or cannot run, does not keep the others from running. OUT then holds eight files at
# most: summary.txt; log.txt, all that was printed; junit.xml; and verify-serial, verify-data, verify-pipeline,
# bench-nin and bench-googlenet, all .json. Exit codes: 0 all passed; 1 something failed or took too long; 2 something
# could not run; 64 wrong usage.
set -u

# distribution and module, of all that is needed beside numpy, CuPy and PyTorch
needs='click=click rich=rich markdown-it-py=markdown_it mdurl=mdurl pygments=pygments hypothesis=hypothesis
sortedcontainers=sortedcontainers pytest=pytest pluggy=pluggy iniconfig=iniconfig packaging=packaging
pytest-timeout=pytest_timeout threadpoolctl=threadpoolctl pyzmq=zmq setuptools=setuptools cython=Cython'
tests='tests/test_cuda_kernels.py tests/test_cuda_place.py'
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)

usage() {
    echo "usage: bench/gpu.sh [--carried DIR] [OUT], or bench/gpu.sh --wheels DIR" >&2
    exit 64
}

fetch() {
    mkdir -p "$1" || exit 2
    names=$(for need in $needs; do echo "${need%%=*}"; done)
    version=${FOR:-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
    set -- "$1" --only-binary=:all: --no-deps --implementation cp --python-version "$version"
    folder=$1
    shift
    for glibc in 2_28 2_27 2_17 2_12 2_5; do set -- "$@" --platform "manylinux_${glibc}_$(uname -m)"; done
    # shellcheck disable=SC2086  # names are words
    "$python" -m pip download -q "$@" --platform "manylinux2014_$(uname -m)" -d "$folder" $names || exit 2
    echo "$folder has what may have to be carried, for Python $version:"
    ls "$folder"
    exit 0
}

wheels=
out=
while [ $# -gt 0 ]; do
    case $1 in
        --wheels) [ $# -eq 2 ] || usage; fetch "$2" ;;
        --carried) { [ $# -ge 2 ] && [ -d "$2" ]; } || usage; wheels=$(cd "$2" && pwd); shift 2 ;;
        -*) usage ;;
        *) [ -z "$out" ] || usage; out=$1; shift ;;
    esac
done
mkdir -p "${out:=${OUT:-gpu-results}}" || exit 2
out=$(cd "$out" && pwd)
: > "$out/log.txt"
: > "$out/summary.txt"
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
trap 'exit 130' INT TERM
failed=0
unable=0

say() { echo "$*" | tee -a "$out/log.txt"; }

# step NAME SECONDS COMMAND...: run it within its limit, note how it ended, go on
step() {
    name=$1 limit=$2
    shift 2
    say "== $name: $*"
    began=$(date +%s)
    timeout -k 5 "$limit" "$@" >> "$out/log.txt" 2>&1
    code=$?
    case $name:$code in
        *:0) word=passed ;;
        *:124 | *:137) word="FAILED: took more than $limit s" failed=1 ;;
        tests:5 | verify*:2 | bench*:2 | info:2) word="could not run" unable=1 ;;
        *) word="FAILED: exit code $code" failed=1 ;;
    esac
    line="$name: $word ($(($(date +%s) - began)) s)"
    say "$line"
    echo "$line" >> "$out/summary.txt"
}

cd "$root" || exit 2
export PYTHONPATH="$root:$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# what is missing, from the wheels
missing=$("$python" - "$needs" <<'END'
import importlib.util, sys
needs = (need.split("=") for need in sys.argv[1].split())
print(*(name for name, module in needs if importlib.util.find_spec(module) is None))
END
) || exit 2
if [ -n "$missing" ] && [ -n "$wheels" ]; then
    # shellcheck disable=SC2086  # names are words
    "$python" -m pip install -q --no-index --find-links "$wheels" --no-deps --target "$site" $missing \
        >> "$out/log.txt" 2>&1
elif [ -n "$missing" ]; then
    say "missing: $missing; bench/gpu.sh --wheels DIR gets them where there is a network, and --carried DIR takes them"
fi

# CUDA's libraries, where they came with PyTorch and no toolkit is installed
libraries=$("$python" - <<'END'
import glob, os, sysconfig
print(":".join(sorted(glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "*", "lib")))))
END
)
[ -z "$libraries" ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries"

if [ -z "${PURINE_REF_FAST:-}" ]; then
    step build 45 "$python" setup.py -q egg_info build_ext --inplace
    if [ "$code" -ne 0 ]; then
        say "no compiled loops, so the CPU runs the plain ones"
        export PURINE_REF_FAST=0
        step metadata 20 "$python" setup.py -q egg_info
    fi
fi
command="$python -m purine_ref_command"
# shellcheck disable=SC2086  # words
{
step info 10 $command info
step tests 60 "$python" -m pytest -q -p no:cacheprovider --must-run -m gpu --junitxml "$out/junit.xml" $tests
step verify-serial 15 $command verify --model nin-digits --scheme serial@cuda --scheme captured@cuda \
    --json "$out/verify-serial.json"
step verify-data 15 $command verify --model nin-digits --scheme data:2@cuda --json "$out/verify-data.json"
step verify-pipeline 15 $command verify --model nin-digits --scheme pipeline:2x4@cuda --json "$out/verify-pipeline.json"
step bench-nin 60 $command bench gpu --model nin --runs 3 --json "$out/bench-nin.json"
step bench-googlenet 80 $command bench gpu --model googlenet --images 0 --runs 3 --json "$out/bench-googlenet.json"
}
say "== summary, in $out"
cat "$out/summary.txt"
[ "$failed" -eq 0 ] || exit 1
[ "$unable" -eq 0 ] || exit 2
