#!/bin/sh
# HOST COMMAND...: as ssh for mpirun, but on this machine under the host name HOST.
host=$1
shift
exec unshare --uts sh -c 'hostname "$0"; exec sh -c "$*"' "$host" "$@"
