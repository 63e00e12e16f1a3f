# Runs one server for one test process, and clears up after both.
#
#   sh -c SCRIPT watcher TEMPORARY PROGRAM [ARGUMENT ...]
#
# Makes a folder in TEMPORARY and says where. Then obeys the words on its input, each answered by
# one line. The end of the input is the end of the owner, however it came: even SIGKILL closes a
# pipe. Then it ends the server and removes the folder.
#
# A process belongs to the server if it works in its data folder: so the orphans of a killed server
# are found too, and never a stranger that was given an old process id.

# If the owner dies while the server is paused, the kernel sends our group a SIGHUP.
trap '' HUP INT TERM PIPE
umask 077
folder=$(mktemp -d "$1/tollgate-test-XXXXXXXXXX") || exit 1
folder=$(cd "$folder" && pwd -P) || exit 1
shift
mkdir "$folder/data"
exec 2>>"$folder/watcher.log"
cd /
server=

# working_in PATTERN: the processes whose working folder matches
working_in() { find /proc/[0-9]*/cwd -maxdepth 0 -lname "$1" 2>/dev/null | cut -d / -f 3; }
running() { working_in "$folder/data"; }

# signal NAME [PROCESS ...]: one that ended by itself meanwhile needs no signal
signal() {
    name=$1
    shift
    for process; do
        kill -s "$name" "$process" 2>/dev/null || [ ! -d "/proc/$process" ] || return 1
    done
}

# signal_all NAME: twice, for what was born in between; its parent has the signal then.
signal_all() {
    # shellcheck disable=SC2046 # one word per process
    signal "$1" $(running)
    # shellcheck disable=SC2046
    signal "$1" $(running)
}

# ended SECONDS: waits that long for the server to end
ended() {
    limit=$(($(date +%s) + $1))
    while [ -n "$(running)" ]; do
        [ "$(date +%s)" -le "$limit" ] || return 1
        sleep 0.02
    done
    # Until its parent has asked for it, a dead PostgreSQL looks alive to the next one in its folder.
    wait "$server"
    true
}

# alive: whether our child is there and no zombie, should the list of those at work not show it
alive() { grep -q '^State:[[:space:]]*[^ZX]' "/proc/$server/status" 2>/dev/null; }

# ended_with: leaves in our log how the server ended; above 128 it was a signal
ended_with() {
    wait "$server"
    echo "the server ended with status $?" >&2
    false
}

# obey WORD PROGRAM [ARGUMENT ...]
obey() {
    word=$1
    shift
    case $word in
    start)
        # In the data folder before it is born: there is no moment at which it is not found.
        cd "$folder/data" || return
        "$@" </dev/null >>"$folder/log" 2>&1 &
        server=$!
        cd /
        ;;
    runs) [ -n "$(running)" ] || alive || ended_with ;;
    stop)
        signal_all CONT
        running | grep -qx "$server" && signal INT "$server"
        ended 60
        ;;
    quit)
        running | grep -qx "$server" && signal QUIT "$server"
        ended 60
        ;;
    kill)
        # First all stand still, so that none sees another die.
        signal_all STOP
        signal_all KILL
        ended 10
        ;;
    pause) signal_all STOP ;;
    resume) signal_all CONT ;;
    *) return 2 ;;
    esac
}

echo "$folder"
while read -r word; do
    if obey "$word" "$@"; then echo yes; else echo no; fi
done

# A server may end by itself first, so that it gives back what it has of the system: immediate
# shutdown is QUIT for PostgreSQL, TERM for pgbouncer.
if [ -n "$server" ]; then
    signal_all CONT
    signal_all QUIT
    signal_all TERM
    ended 5
fi
# What did not end, and what the owner ran beside it: an initdb starts one process after the other.
limit=$(($(date +%s) + 5))
while pids=$(working_in "$folder*") && [ -n "$pids" ] && [ "$(date +%s)" -le "$limit" ]; do
    # shellcheck disable=SC2086
    signal KILL $pids
    sleep 0.02
done
# A killed PostgreSQL leaves a small segment of shared memory behind, and its number in this file.
[ -r "$folder/data/postmaster.pid" ] &&
    ipcrm -m "$(sed -n '7s/.* //p' "$folder/data/postmaster.pid")"
rm -rf "$folder"
