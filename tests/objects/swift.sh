#!/bin/sh
# Runs OpenStack Swift with its S3 interface: one server of each kind, one replica, one folder as
# the device. tools/swift.sh unpacks it.
# usage: swift.sh FOLDER ROOT
# Prints the proxy's port when it answers, and ends with everything that it started at the end of
# its standard input. Its user has the key `test:tester` and the secret `secret`; its region is
# `us-east-1`. FOLDER must support extended attributes of users.
set -eu
folder=$1
root=$2
mkdir -p "$folder/etc" "$folder/devices/d1" "$folder/log" "$folder/run"
export PYTHONPATH="$root/usr/lib/python3/dist-packages" PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH="$root/usr/lib/x86_64-linux-gnu" PATH="$root/usr/bin:$PATH"

# Four ports that are free now.
# shellcheck disable=SC2046  # four words
set -- $(/usr/bin/python3 -c '
import socket
sockets = [socket.socket() for _ in range(4)]
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))')
proxy_port=$1
account_port=$2
container_port=$3
object_port=$4

# Rings and servers read this file.
printf '[swift-hash]\nswift_hash_path_suffix = test\n' >"$folder/etc/swift.conf"

# Rings of one partition on one device.
/usr/bin/python3 - "$folder/etc" "account=$account_port" "container=$container_port" "object=$object_port" <<'END'
import sys
from swift.common.ring import RingBuilder
for word in sys.argv[2:]:
    name, port = word.split('=')
    ring = RingBuilder(part_power=1, replicas=1, min_part_hours=0)
    ring.add_dev({'region': 1, 'zone': 1, 'ip': '127.0.0.1', 'port': int(port), 'device': 'd1', 'weight': 1, 'meta': '',
                  'replication_ip': '127.0.0.1', 'replication_port': int(port)})
    ring.rebalance()
    ring.get_ring().save(f'{sys.argv[1]}/{name}.ring.gz')
END

# storage NAME PORT: the configuration of a server that stores.
storage() {
  cat >"$folder/etc/$1.conf" <<END
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = $2
swift_dir = $folder/etc
devices = $folder/devices
mount_check = false
workers = 0
user = $(id -un)
log_name = $1
disable_fallocate = true
[pipeline:main]
pipeline = $1-server
[app:$1-server]
use = egg:swift#$1
END
}
storage account "$account_port"
storage container "$container_port"
storage object "$object_port"
cat >"$folder/etc/proxy.conf" <<END
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = $proxy_port
swift_dir = $folder/etc
workers = 0
user = $(id -un)
log_name = proxy
[pipeline:main]
pipeline = catch_errors cache listing_formats s3api tempauth proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = secret .admin
END

started=
# shellcheck disable=SC2317  # called by the trap
stop() {
  # shellcheck disable=SC2086  # one process id a word
  kill -KILL $started 2>/dev/null || true
  wait 2>/dev/null
}
trap stop EXIT
# Swift has no option for the path of swift.conf.
cat >"$folder/etc/start.py" <<'END'
import runpy
import sys
import swift.common.utils
swift.common.utils.SWIFT_CONF_FILE = sys.argv.pop(1)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
END
for name in account container object proxy; do
  /usr/bin/python3 "$folder/etc/start.py" "$folder/etc/swift.conf" "$root/usr/bin/swift-$name-server" \
    "$folder/etc/$name.conf" </dev/null >"$folder/log/$name" 2>&1 &
  started="$started $!"
done

# There is no event for a port that another program opens.
/usr/bin/python3 - "$proxy_port" "$account_port" "$container_port" "$object_port" <<'END' || { cat "$folder"/log/* >&2; exit 1; }
import socket
import sys
import time
end = time.monotonic() + 60
for port in sys.argv[1:]:
    while socket.socket().connect_ex(('127.0.0.1', int(port))) != 0:
        if time.monotonic() > end:
            sys.exit(1)
        time.sleep(0.02)
END
echo "$proxy_port"
cat >/dev/null
