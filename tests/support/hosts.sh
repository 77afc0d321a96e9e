# hosts.sh - pretended hosts for tests: network namespaces on one bridge, each with a name of its own, in which Open MPI
# starts ranks over TCP as on a cluster. Files are shared; hosts_hide gives one host a folder of its own.
# Needs root, ip, unshare and Open MPI. Sourced behind lib.sh; names hold the shell's process number, so that several such
# tests may run at a time. What was set up goes when the shell ends.
hosts_net=10.77.0
hosts_num=0
hosts_agent=$tmp/host-agent

hosts_possible() {
  [ "$(id -u)" = 0 ] && command -v ip unshare >/dev/null && mpi && "$mpirun" --version | grep -q 'Open MPI' &&
    unshare --uts true 2>/dev/null && ip netns add "tt$$-0" 2>/dev/null && ip netns del "tt$$-0"
}

# hosts_up N: "host1" ... "hostN". Fails where the kernel has no such links.
hosts_up() {
  local i
  trap hosts_down EXIT
  ip link add "ttb$$" type bridge && ip link set "ttb$$" up || return 1
  for ((i = 1; i <= $1; i++)); do
    ip netns add "tt$$-$i" && hosts_num=$i &&
      ip link add "tt$$v$i" type veth peer name eth0 netns "tt$$-$i" && ip link set "tt$$v$i" master "ttb$$" up &&
      ip -n "tt$$-$i" addr add "$hosts_net.$i/24" dev eth0 && ip -n "tt$$-$i" link set eth0 up &&
      ip -n "tt$$-$i" link set lo up || return 1
  done
  # What Open MPI runs in place of ssh: AGENT ADDRESS COMMAND ...
  cat >"$hosts_agent" <<END
#!/bin/bash
host=\${1##*.}
shift
exec ip netns exec tt$$-\$host unshare --uts sh -c 'hostname "\$0"; exec "\$@"' host\$host sh -c "\$*"
END
  chmod +x "$hosts_agent"
}

hosts_down() {
  local i
  for ((i = 1; i <= hosts_num; i++)); do ip netns del "tt$$-$i"; done # their ends of the links go too
  ip link del "ttb$$" 2>/dev/null
}

# hosts_cut I, hosts_join I: the link of a host fails, and works again.
hosts_cut() { ip -n "tt$$-$1" link set eth0 down; }
hosts_join() { ip -n "tt$$-$1" link set eth0 up; }

# hosts_hide FOLDER PREPARE: from now on ranks on host2 see an empty folder there, in which PREPARE has run.
# hosts_share: no more.
hosts_hide() {
  cat >"$tmp/hidden" <<END
#!/bin/bash
[ "\$(hostname)" = host2 ] || exec "\$@"
exec unshare -m bash -c 'mount -t tmpfs none "$1" && cd "$1" && { $2; } && cd "$PWD" && exec "\$@"' x "\$@"
END
  chmod +x "$tmp/hidden"
}
hosts_share() { rm -f "$tmp/hidden"; }

# hosts_limit RATE: what every host sends goes no faster, such as 2gbit.
hosts_limit() {
  local i
  for ((i = 1; i <= hosts_num; i++)); do
    ip netns exec "tt$$-$i" tc qdisc replace dev eth0 root tbf rate "$1" burst 1mb latency 20ms || return 1
  done
}

# hosts_start SECONDS SLOTS COMMAND ...: so many ranks on every host, no longer than that.
hosts_start() {
  local limit=$1 slots=$2 list='' i
  shift 2
  for ((i = 1; i <= hosts_num; i++)); do list+=,$hosts_net.$i:$slots; done
  timeout --kill-after=5 "$limit" "$hosts_agent" x.1 "$mpirun" --mca plm_rsh_agent "$PWD/$hosts_agent" -wdir "$PWD" \
    --mca btl self,tcp --mca btl_tcp_if_include $hosts_net.0/24 --mca oob_tcp_if_include $hosts_net.0/24 \
    --oversubscribe -H "${list#,}" -n $((slots * hosts_num)) "$@" </dev/null
}

# hosts_run SLOTS ARGUMENTS ...: tartan on every host with so many ranks; sets output and status as run does.
hosts_run() {
  local slots=$1 start=$SECONDS command=("$PWD/$tartan")
  shift
  [ -e "$tmp/hidden" ] && command=("$PWD/$tmp/hidden" "${command[@]}")
  hosts_start 60 "$slots" "${command[@]}" "$@" >"$tmp/said" 2>&1
  status=$? seconds=$((SECONDS - start))
  output=$(tr -d '\0' <"$tmp/said")
}
