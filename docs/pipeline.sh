#!/usr/bin/env bash
# From a running command to a report: nsys profile -> nsys export -> (nsys recipe) -> trace-analyze.
set -euo pipefail

usage() {
    cat <<'HELP'
Usage: pipeline.sh [options] -- COMMAND [ARGUMENT]...   record COMMAND, export, analyse
       pipeline.sh [options] --rep run.nsys-rep         start from a report that exists

Options:
  -o, --out DIR        folder for everything made here (default: trace-analyze-out)
  -d, --delay SECONDS  wait before recording, until the server is warm (default: 0)
  -t, --time SECONDS   how long to record; 0 = until COMMAND ends (default: 10)
  -c, --capture-range  record between cudaProfilerStart and cudaProfilerStop instead of by time
  -m, --gpu-metrics    sample GPU metrics at 10 kHz too (needs permission to read counters)
  -e, --export KIND    parquetdir (fastest to read), arrowdir or sqlite (default: parquetdir)
  -r, --recipe NAME    also run `nsys recipe NAME` on the report (repeatable), e.g. cuda_gpu_kern_sum
  -a, --analyze "..."  options for trace-analyze, e.g. "--gpu h100 --model llama-3.1-8b"
      --rep FILE       use this report instead of recording one
  -n, --dry-run        print the commands, run nothing
  -h, --help           show this help

Makes DIR/run.nsys-rep, the export (DIR/run_pqtdir, DIR/run_arwdir or DIR/run.sqlite), a report and JSON named after the
export, and DIR/recipe-NAME for each recipe.
The exit code is that of the first step that fails; trace-analyze exits 0 when it could analyse the capture.
HELP
}

fail() {
    printf 'pipeline.sh: %s\nTry: pipeline.sh --help\n' "$1" >&2
    exit 2
}

run() {
    printf '+ %s\n' "$(printf '%q ' "$@" | sed 's/ $//')" >&2
    if [ "$dry_run" -eq 0 ]; then "$@"; fi
}

out=trace-analyze-out delay=0 seconds=10 by_range=0 gpu_metrics=0 kind=parquetdir analyze="" report="" dry_run=0
recipes=()
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) usage; exit 0 ;;
        -c | --capture-range) by_range=1; shift ;;
        -m | --gpu-metrics) gpu_metrics=1; shift ;;
        -n | --dry-run) dry_run=1; shift ;;
        --) shift; break ;;
        -o | --out | -d | --delay | -t | --time | -e | --export | -r | --recipe | -a | --analyze | --rep)
            [ $# -ge 2 ] || fail "$1 needs a value"
            case "$1" in
                -o | --out) out=$2 ;;
                -d | --delay) delay=$2 ;;
                -t | --time) seconds=$2 ;;
                -e | --export) kind=$2 ;;
                -r | --recipe) recipes+=("$2") ;;
                -a | --analyze) analyze=$2 ;;
                --rep) report=$2 ;;
            esac
            shift 2 ;;
        *) fail "unknown option $1" ;;
    esac
done

case "$kind" in
    parquetdir) exported=$out/run_pqtdir ;;
    arrowdir) exported=$out/run_arwdir ;;
    sqlite) exported=$out/run.sqlite ;;
    *) fail "--export $kind: choose parquetdir, arrowdir or sqlite" ;;
esac
if [ -n "$report" ]; then
    [ $# -eq 0 ] || fail "give either --rep or a command, not both"
    [ "$dry_run" -eq 1 ] || [ -f "$report" ] || fail "no such report: $report"
else
    [ $# -gt 0 ] || fail "give a command after --, or a report with --rep"
fi
if [ "$dry_run" -eq 0 ]; then
    for program in nsys trace-analyze; do
        command -v "$program" >/dev/null || fail "$program is not on the PATH"
    done
fi

run mkdir -p "$out"
if [ -z "$report" ]; then
    report=$out/run.nsys-rep
    flags=(--trace=cuda,nvtx --cuda-graph-trace=node --trace-fork-before-exec=true --sample=none --cpuctxsw=none)
    if [ "$by_range" -eq 1 ]; then
        flags+=(--capture-range=cudaProfilerApi --capture-range-end=stop)
    else
        flags+=("--delay=$delay")
        if [ "$seconds" != 0 ]; then flags+=("--duration=$seconds"); fi
    fi
    if [ "$gpu_metrics" -eq 1 ]; then flags+=(--gpu-metrics-devices=all --gpu-metrics-frequency=10000); fi
    run nsys profile "${flags[@]}" "--output=$out/run" --force-overwrite=true "$@"
fi
run nsys export --type "$kind" --force-overwrite=true --output "$exported" "$report"
for recipe in ${recipes[@]+"${recipes[@]}"}; do
    run nsys recipe "$recipe" --input "$report" --output "$out/recipe-$recipe" --force-overwrite
done
# shellcheck disable=SC2086  # options are meant to be split into words
run trace-analyze "$exported" $analyze -o "$out" --format html,json
