#!/bin/sh
# PID 1 of a machine of the lab. Its root is the root of the real machine, read-only; the kernel puts
# NODE, ADDRESS and SHARED (a directory of the real machine, mounted at /mnt/shared), which stand on its
# command line, into the environment.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
for place in /tmp /run /mnt /var/log /var/lib/nfs; do mount -t tmpfs tmpfs $place; done
mkdir -p /run/rpcbind /mnt/shared /mnt/volume /tmp/modules/lib
cd /var/lib/nfs && mkdir -p sm sm.bak rpc_pipefs v4recovery nfsdcltrack && touch etab rmtab && cd /
mount -t hostfs -o "$SHARED" none /mnt/shared
ln -s /usr/lib/uml/modules /tmp/modules/lib/modules
hostname "$NODE"
ip link set lo up
# A new address at every boot would leave the others with stale ARP entries: an outage of its own.
ip link set vec0 address "02:77:00:00:00:${ADDRESS##*.}"
ip addr add "$ADDRESS/24" dev vec0
ip link set vec0 up
/usr/bin/python3 /mnt/shared/agent.py &
# Members of a fleet that end are children of this process: until it reaps them they look alive.
wait
