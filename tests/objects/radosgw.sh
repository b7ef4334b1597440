#!/bin/bash
# Runs a radosgw (Ceph's S3 server): one monitor, one OSD, no cephx.
# usage: radosgw.sh FOLDER [memory | disk]
# Objects are in memory, or in files in FOLDER. Prints its port when it answers. A line on standard
# input starts a radosgw that was killed (its process id is in FOLDER/run/radosgw) again, and prints
# the port when it answers. Ends with everything that it started at the end of its standard input. Its user has
# the key AKIDTEST and the secret `secret`; its region is `default`.
set -eu
folder=$1
case ${2:-memory} in
  memory) store='osd objectstore = memstore
memstore device bytes = '${MEMSTORE_BYTES:-1073741824} ;;
  disk) store='osd objectstore = bluestore
bluestore block create = true
bluestore block size = 8589934592
osd memory target = 1073741824' ;;
esac
for name in mon osd rgw run log; do mkdir -p "$folder/$name"; done

# Two ports that are free now. The kernel gives none of this range to a connection of another process
# before the servers use them.
# shellcheck disable=SC2046  # two words
set -- $(/usr/bin/python3 -c '
import random
import socket
sockets = [socket.socket() for _ in range(2)]
for each in sockets:
    while True:
        try:
            each.bind(("127.0.0.1", random.randrange(10000, 32000)))
            break
        except OSError:
            pass
print(*(each.getsockname()[1] for each in sockets))')
mon_port=$1
rgw_port=$2

fsid=$(cat /proc/sys/kernel/random/uuid)
# Without `paxos propose interval` the start takes 12 s. Without tcp_nodelay a request takes 44 ms.
cat >"$folder/ceph.conf" <<END
[global]
fsid = $fsid
mon host = [v1:127.0.0.1:$mon_port]
mon initial members = a
auth cluster required = none
auth service required = none
auth client required = none
auth allow insecure global id reclaim = false
ms bind msgr2 = false
mon allow pool size one = true
mon osd min in ratio = 0
mon max pg per osd = 10000
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
paxos propose interval = 0.02
paxos min wait = 0.01
mon tick interval = 1
run dir = $folder/run
admin socket = $folder/run/\$name.asok
log file = $folder/log/\$name.log
mon cluster log file = $folder/log/cluster.log
pid file = $folder/run/\$name.pid
keyring = /dev/null
[mon.a]
mon data = $folder/mon
mon addr = 127.0.0.1:$mon_port
mon data avail warn = 1
mon data avail crit = 1
[osd.0]
osd data = $folder/osd
$store
osd mclock skip benchmark = true
osd max pg per osd hard ratio = 100
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:$rgw_port tcp_nodelay=1
rgw data = $folder/rgw
rgw enable usage log = false
rgw thread pool size = 32
rgw run sync thread = false
admin socket =
END
export CEPH_CONF="$folder/ceph.conf" CEPH_ARGS="-c $folder/ceph.conf"

# shellcheck disable=SC2317  # called by the trap
stop() {
  # shellcheck disable=SC2046  # one process id a word
  kill -KILL $(jobs -p) 2>/dev/null || true
  wait 2>/dev/null
}
end() {
  code=$?
  [ $code -eq 0 ] || tail -n 5 "$folder"/log/* >&2
  stop
  exit $code
}
trap end EXIT
# The programs of Ceph wait for each other without limit.
step() { timeout 150 "$@"; }
start() {
  "$@" </dev/null >"$folder/log/$1.out" 2>&1 &
}

monmaptool --create --fsid "$fsid" --addv a "[v1:127.0.0.1:$mon_port]" "$folder/monmap" >/dev/null
step ceph-mon -i a --mkfs --monmap "$folder/monmap" >"$folder/log/mkfs.out" 2>&1
start ceph-mon -i a -f
step ceph-osd -i 0 --mkfs --osd-uuid "$(cat /proc/sys/kernel/random/uuid)" >>"$folder/log/mkfs.out" 2>&1
# Just after its start the monitor may not know its own fsid, and refuses all commands.
tries=0
until step ceph osd new "$(cat "$folder/osd/fsid")" 0 >/dev/null 2>"$folder/log/osd-new.out"; do
  tries=$((tries + 1))
  [ $tries -lt 30 ] || exit 1
  sleep 0.3
done
start_osd() {
  start ceph-osd -i 0 -f
  osd=$!
}
start_osd
start_radosgw() {
  start radosgw -n client.rgw -f
  echo $! >"$folder/run/radosgw"
}
start_radosgw
# This waits for the OSD, which on a busy machine may end at its start because it does not know the
# monitor's fsid yet ("wrong fsid"). Then it is started again.
step radosgw-admin -n client.rgw user create --uid=test --display-name=test --access-key=AKIDTEST --secret=secret \
  >"$folder/log/user.out" 2>&1 &
user=$!
for _ in 1 2 3 4 5; do
  code=0
  wait -n -p ended "$user" "$osd" || code=$?
  [ "$ended" != "$user" ] || break
  start_osd
done
[ "$code" -eq 0 ]

# There is no event for a port that another program opens.
await_port() {
  /usr/bin/python3 - "$rgw_port" <<'END' || { echo "radosgw did not start; see $folder/log" >&2; exit 1; }
import socket
import sys
import time
end = time.monotonic() + 60
while socket.socket().connect_ex(('127.0.0.1', int(sys.argv[1]))) != 0:
    if time.monotonic() > end:
        sys.exit(1)
    time.sleep(0.02)
END
  echo "$rgw_port"
}
await_port
while read -r _; do
  start_radosgw
  await_port
done
