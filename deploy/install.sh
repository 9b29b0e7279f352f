#!/bin/sh
# Installs the supervisor as a systemd service, or takes it away again. Running
# it again brings an installation up to date: formations run on.
#
#   install.sh [--root DIR] [--bin DIR] [--no-start]
#   install.sh --uninstall [--purge] [--root DIR]
#
# --root DIR   install below DIR (a scratch root or an image) and start nothing
# --bin DIR    take the two programs from DIR; else from bin/, built when missing
# --no-start   install, but neither start nor reload the service
# --purge      remove settings, formations, logs and the user, too
set -eu
umask 022

usage() {
  echo "install: $1; see --help" >&2
  exit 2
}

here=$(cd "$(dirname "$0")" && pwd)
root='' bin='' start=1 uninstall='' purge=''
while [ $# -gt 0 ]; do
  case $1 in
    --root | --bin)
      [ -n "${2:-}" ] || usage "$1 needs a directory"
      if [ "$1" = --root ]; then root=$2; else bin=$2; fi
      shift
      ;;
    --no-start) start='' ;;
    --uninstall) uninstall=1 ;;
    --purge) purge=1 ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) usage "unknown argument $1" ;;
  esac
  shift
done
[ -z "$purge" ] || [ -n "$uninstall" ] || usage "--purge goes with --uninstall"
root=${root%/}
if [ -n "$root" ]; then
  start=''
elif [ "$(id -u)" != 0 ]; then
  echo "install: run this as root, or with --root DIR" >&2
  exit 1
fi

programs='supervisor formation-runtime'
unit=$root/etc/systemd/system/supervisor.service
sysusers=$root/usr/lib/sysusers.d/svc.conf

# on_host tells whether this machine itself is meant, and systemd runs it.
on_host() { [ -z "$root" ] && [ -d /run/systemd/system ]; }

# put FILE TARGET MODE: a new file by one rename, so that a program that runs
# keeps its own; nothing when it is the same.
put() {
  if cmp -s "$1" "$2" && [ "$(stat -c %a "$2")" = "$3" ]; then
    return
  fi
  mkdir -p "$(dirname "$2")"
  cp "$1" "$2.new"
  chmod "$3" "$2.new"
  mv -f "$2.new" "$2"
  echo "installed $2"
}

take_away() {
  if on_host; then
    systemctl disable --now supervisor.service 2>/dev/null || true
  fi
  for p in $programs; do rm -f "$root/usr/local/bin/$p"; done
  rm -f "$unit" "$sysusers"
  if [ -n "$purge" ]; then
    rm -rf "$root/var/lib/svc" "$root/etc/svc" "$unit.d"
    if [ -z "$root" ] && id svc >/dev/null 2>&1 && ! userdel svc; then
      echo "install: the user svc stays: end its processes, then run: userdel svc" >&2
    fi
  fi
  if on_host; then systemctl daemon-reload; fi
  echo "the supervisor is uninstalled${purge:+, with its data}"
}

if [ -n "$uninstall" ]; then
  take_away
  exit 0
fi

# A unit of this name that a package brought, such as Debian's package supervisor,
# would be hidden by ours.
for other in "$root/usr/lib/systemd/system/supervisor.service" "$root/lib/systemd/system/supervisor.service"; do
  if [ -e "$other" ]; then
    echo "install: $other belongs to a package; remove that first (dpkg -S or rpm -qf tells which)" >&2
    exit 1
  fi
done
if [ -z "$bin" ]; then
  bin=$here/../bin
  for p in $programs; do
    [ -x "$bin/$p" ] || { make -C "$here/.." build; break; }
  done
fi
for p in $programs; do
  if [ ! -f "$bin/$p" ] || [ ! -x "$bin/$p" ]; then
    echo "install: $bin/$p is missing or no program; make build leaves both in bin" >&2
    exit 1
  fi
done
for p in $programs; do put "$bin/$p" "$root/usr/local/bin/$p" 755; done
put "$here/systemd/supervisor.service" "$unit" 644
put "$here/systemd/svc.conf" "$sysusers" 644

if [ -z "$root" ] && ! id svc >/dev/null 2>&1; then
  if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers "$sysusers"
  else
    useradd --system --user-group --home-dir /var/lib/svc --shell /usr/sbin/nologin svc
  fi
fi
# own DIR MODE: a directory of the service; one that is there stays as it is.
own() {
  if [ ! -d "$root$1" ]; then
    mkdir -p "$root$1"
    chmod "$2" "$root$1"
    if [ -z "$root" ]; then chown svc:svc "$1"; fi
  fi
}
own /var/lib/svc 700
own /etc/svc 750

if on_host; then systemctl daemon-reload; fi
if [ -n "$start" ] && on_host; then
  systemctl enable supervisor.service
  if systemctl is-active --quiet supervisor.service; then
    systemctl reload supervisor.service
  else
    systemctl start supervisor.service
  fi
fi
echo "installed; settings: ${root}/var/lib/svc/config.yaml, made at the first start"
