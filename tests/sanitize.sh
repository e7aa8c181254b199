#!/bin/sh
# The tests of the compiled teams under a sanitizer of GCC: sh tests/sanitize.sh thread|address [pytest arguments]
#
# The extensions are built with it in a copy of the sources, and the interpreter, which is not, is run with the
# sanitizer's library loaded first. ThreadSanitizer sees every access of the extensions, and the interpreter's lock, since
# that is a mutex of pthread's. A report makes the run fail. PYTHON chooses the interpreter, which needs the package's needs.
set -eu

kind=${1:?thread or address}
shift
case $kind in thread | address) ;; *) echo "expected thread or address, got $kind" >&2; exit 64 ;; esac
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")/.." && pwd)
copy=$(mktemp -d)
trap 'cat "$copy"/report.* 2>/dev/null || true; rm -rf "$copy"' EXIT

mkdir "$copy/tests"
(cd "$here" && tar cf - --exclude='*.so' setup.py pyproject.toml README.md LICENSE purine_ref tests) | (cd "$copy" && tar xf -)
cd "$copy"
CFLAGS="-fsanitize=$kind -g -O1" PURINE_REF_FAST=1 "$python" setup.py -q build_ext --inplace

case $kind in
    thread) library=libtsan.so; export TSAN_OPTIONS="log_path=$copy/report exitcode=66" ;;
    address) library=libasan.so; export ASAN_OPTIONS="log_path=$copy/report detect_leaks=0" PYTHONMALLOC=malloc ;;
esac
[ $# -gt 0 ] || set -- tests/test_tracker.py tests/test_team.py tests/test_walkers.py
# without random addresses, since ThreadSanitizer lays out memory by itself
LD_PRELOAD=$(gcc -print-file-name=$library) PURINE_REF_FAST=1 HYPOTHESIS_PROFILE=dev PYTHONPATH=. \
    setarch -R "$python" -m pytest -q -p no:cacheprovider -n0 "$@"
