#!/usr/bin/env bash
# deps-onnxruntime.sh: leaves the ONNX Runtime library, which tests and the
# benchmark of local embeddings load, in the user's cache, where the program finds
# it too, and prints nothing but what it does. It is taken out of the npm package
# onnxruntime-node; npm runs nothing of it. There already: done at once.
#
# The library is an option of the product: without npm the tests of that engine
# say so and fail, the build does not.
set -euo pipefail
retry=$(cd "$(dirname "$0")" && pwd)/retry
version=1.30.0
dir=${XDG_CACHE_HOME:-$HOME/.cache}/agentformation/onnxruntime/$version
lib=$dir/libonnxruntime.so.1
if [ -s "$lib" ]; then
  exit 0
fi
case $(uname -sm) in
  "Linux x86_64") arch=x64 ;;
  "Linux aarch64") arch=arm64 ;;
  *)
    echo "deps: no ONNX Runtime for $(uname -sm) in the npm package; its tests will fail" >&2
    exit 0
    ;;
esac
if ! command -v npm >/dev/null; then
  echo "deps: no npm on PATH, so no ONNX Runtime; its tests will fail" >&2
  exit 0
fi
mkdir -p "$dir"
exec 9>"$dir/.lock"
if command -v flock >/dev/null && ! flock -n 9; then
  echo "deps: waiting for another step that fetches the ONNX Runtime" >&2
  flock -w 1800 9 || echo "deps: it takes too long; going on beside it" >&2
fi
if [ -s "$lib" ]; then
  exit 0
fi
echo "deps: fetching the ONNX Runtime $version (once; 110 MB)" >&2
tmp=$(mktemp -d "$dir/.fetch-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
if ! (cd "$tmp" && "$retry" 4 900 npm pack --loglevel=error --ignore-scripts "onnxruntime-node@$version" >/dev/null); then
  echo "deps: the ONNX Runtime can't be fetched; its tests will fail" >&2
  exit 0
fi
tar -xzf "$tmp"/onnxruntime-node-"$version".tgz -C "$tmp" "package/bin/napi-v6/linux/$arch/libonnxruntime.so.1"
mv -f "$tmp/package/bin/napi-v6/linux/$arch/libonnxruntime.so.1" "$lib"
