#!/usr/bin/env bash
# deps-npm.sh: leaves what the tests take from npm (test/npm/package.json) in
# .make/npm: real tool servers, readers of event streams, and the conformance
# suite of MCP with the Node 22 that it needs. Nothing of it runs at install
# time. There already: done at once.
#
# The product needs none of it. Without npm the tests that need these programs
# say so and fail; the build does not.
set -euo pipefail
cd "$(dirname "$0")/.."
node=22.23.3
dir=.make/npm
want=$(cat test/npm/package-lock.json <(echo "$node") | sha256sum | cut -d' ' -f1)
if [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$want" ]; then
  exit 0
fi
# One at a time: two would remove each other's files.
mkdir -p .make
exec 9>.make/npm.lock
if command -v flock >/dev/null && ! flock -n 9; then
  echo "deps: waiting for another step that fetches from npm" >&2
  flock -w 1800 9 || echo "deps: it takes too long; going on beside it" >&2
fi
if [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$want" ]; then
  exit 0
fi
if ! command -v npm >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
  echo "deps: installing nodejs and npm" >&2
  scripts/apt-install nodejs npm || true
fi
if ! command -v npm >/dev/null; then
  echo "deps: no npm on PATH, so no tool servers from npm; the tests that start them will fail" >&2
  exit 0
fi
case $(uname -sm) in
  "Linux x86_64") arch=linux-x64 ;;
  "Linux aarch64") arch=linux-arm64 ;;
  *) arch= ;;
esac
echo "deps: fetching tool servers and the conformance suite from npm (once; 70 MB)" >&2
root=$PWD
tmp=$(mktemp -d .make/npm-XXXXXX)
trap 'rm -rf "$tmp"' EXIT
cp test/npm/package.json test/npm/package-lock.json "$tmp/"
if ! (cd "$tmp" && "$root/scripts/retry" 4 900 npm ci --loglevel=error --no-audit --no-fund --ignore-scripts >&2); then
  echo "deps: npm can't install; the tests that need it will fail" >&2
  exit 0
fi
whole=1
if [ -n "$arch" ]; then
  if (cd "$tmp" && "$root/scripts/retry" 4 900 npm pack --loglevel=error --ignore-scripts "node-$arch@$node" >/dev/null); then
    mkdir "$tmp/node22"
    tar -xzf "$tmp/node-$arch-$node.tgz" -C "$tmp/node22" --strip-components=1
    rm "$tmp/node-$arch-$node.tgz"
  else
    echo "deps: no Node 22 from npm; the conformance suite can't run, the next run asks again" >&2
    whole=
  fi
fi
if [ -n "$whole" ]; then
  echo "$want" >"$tmp/.stamp"
fi
rm -rf "$dir"
mv "$tmp" "$dir"
trap - EXIT
