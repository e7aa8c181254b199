#!/bin/sh
# The tests of the compiled loops and teams under GCC's sanitizers:
#
#     sh tests/sanitize.sh address [pytest arguments]    AddressSanitizer and UndefinedBehaviorSanitizer
#     sh tests/sanitize.sh thread [pytest arguments]     ThreadSanitizer
#
# The extensions are built with it in a copy of the sources, and the interpreter, which is not, is run with the
# sanitizer's library loaded first. ThreadSanitizer sees every access of the extensions, and the interpreter's lock, since
# that is a mutex of pthread's. A report makes the run fail. PYTHON chooses the interpreter, which needs the package's
# needs, Cython, and the extra `test`. Leaks are not looked for here, since the interpreter leaves much behind:
# `tests/test_leaks.py` does. Exit codes: that of pytest, or the sanitizer's (66); 64 wrong usage, 69 no such library.
set -eu

kind=${1:?address or thread}
shift
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")/.." && pwd)
case $kind in
    address)
        library=libasan.so
        # Python asks for signed numbers that wrap round, which hides that ours do
        flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-wrapv -fno-wrapv-pointer"
        tests="test_tracker test_team test_walkers test_rows test_twins test_twins_channels test_twins_refusals \
            test_tracing test_helpers test_leaks"
        ;;
    thread)
        library=libtsan.so
        flags="-fsanitize=thread"
        tests="test_tracker test_team test_walkers test_helpers test_threaded"
        ;;
    *) echo "expected address or thread, got $kind" >&2; exit 64 ;;
esac
loaded=$(gcc -print-file-name=$library)
[ -e "$loaded" ] || { echo "gcc has no $library here" >&2; exit 69; }

copy=$(mktemp -d)
trap 'cat "$copy"/report.* 2>/dev/null || true; rm -rf "$copy"' EXIT
(cd "$here" && tar cf - --exclude='*.so' --exclude=__pycache__ setup.py pyproject.toml README.md LICENSE docs purine_ref \
    purine_ref_command tests) | (cd "$copy" && tar xf -)
cd "$copy"
CFLAGS="$flags -g1 -O1" PURINE_REF_FAST=1 "$python" setup.py -q build_ext --inplace

if [ $# -eq 0 ]; then
    for test in $tests; do set -- "$@" "tests/$test.py"; done
fi
report="log_path=$copy/report:exitcode=66"
export ASAN_OPTIONS="$report:detect_leaks=0" UBSAN_OPTIONS="$report:print_stacktrace=1" TSAN_OPTIONS="$report:die_after_fork=0" # a test forks
# memory by malloc, where AddressSanitizer sees each block; addresses not random, since ThreadSanitizer lays out memory
LD_PRELOAD=$loaded PYTHONMALLOC=malloc PURINE_REF_FAST=1 HYPOTHESIS_PROFILE=dev PYTHONPATH=. \
    setarch -R "$python" -m pytest -q -p no:cacheprovider -n0 --timeout 0 "$@"
