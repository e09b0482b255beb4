#!/bin/sh
# The tests that must pass on any machine, in six kinds of weather, a line each: sh benchmarks/test_weather.sh [TEST...]
# Without arguments it runs what make test runs but the lint. It runs pytest alone: in the clone as it is, twice.
set -u
cd "$(dirname "$0")/.."
WORKERS=${WORKERS:-3}
export OMP_NUM_THREADS=1
logs=$(mktemp -d)
failed=0
loops=""
trap 'kill $loops 2>/dev/null' EXIT
trap 'exit 130' INT TERM

tests() { python -m pytest -n "$WORKERS" --dist loadgroup --no-loadscope-reorder -m "not soak" "$@"; }

weather() { # NAME COMMAND...: what came of it, how long it took, and where its output is
  name=$1 log="$logs/$(echo "$1" | tr ' ' '_')" began=$(date +%s)
  shift
  "$@" >"$log" 2>&1
  code=$?
  [ $code -eq 0 ] || failed=1
  last=$(grep -E '[0-9]+ (passed|failed|error)' "$log" | tail -1)
  printf '%-34s exit %d  %4d s  %s  %s\n' "$name" $code $(($(date +%s) - began)) "${last:-$(tail -1 "$log")}" "$log"
}

busy() { # four loops that compute, beside the tests
  for _ in 1 2 3 4; do
    sh -c 'while :; do :; done' &
    loops="$loops $!"
  done
  tests "$@"
  code=$?
  kill $loops
  loops=""
  return $code
}

nicely() { nice -n 19 python -m pytest -n "$WORKERS" --dist loadgroup --no-loadscope-reorder -m "not soak" "$@"; }

background() { # of a script without job control, where SIGINT is ignored
  tests "$@" &
  wait $!
}

backward() { tests -p no:randomly --reverse-files "$@"; }

weather "quiet" tests "$@"
weather "again in the same clone" tests "$@"
weather "four busy loops beside it" busy "$@"
weather "nice -n 19" nicely "$@"
weather "in the background of a script" background "$@"
weather "files in reverse" backward "$@"
exit $failed
