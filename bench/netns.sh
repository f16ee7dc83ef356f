# SPDX-License-Identifier: Apache-2.0
# Hosts on one machine, to be sourced: network namespaces in a row, neighbours joined by a link of limited rate per direction.
# netns_missing says what is missing to make them; netns_down, to be called at exit, takes them away. Rank r is reached by
# netns_address r from everywhere, far ranks by way of those between.

netns_prefix="hs$$"
netns_count=0
netns_delay=""       # of every link, on top of its rate, where the kernel has netem
netns_segment=32000  # bytes

# Prints why namespaces or limits cannot be had here; nothing if they can.
netns_missing() {
  [ "$(id -u)" = 0 ] || { echo "needs root"; return; }
  local tool
  for tool in ip tc; do
    command -v "$tool" > /dev/null || { echo "needs $tool"; return; }
  done
  local probe="${netns_prefix}probe" why=""
  ip netns add "$probe" 2> /dev/null || { echo "network namespaces cannot be made"; return; }
  ip -n "$probe" link add left type veth peer name right 2> /dev/null || why="the kernel has no veth"
  [ -n "$why" ] || tc -n "$probe" qdisc add dev left root tbf rate 100mbit burst 16kb latency 50ms 2> /dev/null ||
    why="the kernel has no tbf"
  ip netns del "$probe"
  echo "$why"
}

# Whether the kernel can delay packets.
netns_has_netem() {
  local probe="${netns_prefix}probe" status=0
  ip netns add "$probe" && ip -n "$probe" link add left type veth peer name right
  tc -n "$probe" qdisc add dev left root netem delay 1ms 2> /dev/null || status=1
  ip netns del "$probe"
  return "$status"
}

netns_name() { echo "$netns_prefix-$1"; }
netns_address() { echo "10.77.0.$(($1 + 1))"; }

# Segments of some size, as a network card's offload makes them, and a bucket for one of them. Small ones would each have their
# acknowledgement, which takes 2 % of the way back. A large bucket gives away what has been saved up while a link was idle; a
# small one loses for good what the kernel of a busy machine is late to send.
netns_limit() {
  ip -n "$1" link set "$2" gso_max_size "$netns_segment" &&
    tc -n "$1" qdisc add dev "$2" root handle 1: tbf rate "$3" burst $((netns_segment + 4000)) latency 50ms &&
    { [ -z "$netns_delay" ] || tc -n "$1" qdisc add dev "$2" parent 1:1 netem delay "$netns_delay" limit 100000; }
}

# netns_up COUNT RATE [RATE ...]: one rate per link (as tc writes it), or one for all; "unlimited" for none at all. What waits
# for a link queues for 50 ms at most.
netns_up() {
  netns_count=$1
  shift
  local rates=("$@") r k
  for ((r = 0; r < netns_count; ++r)); do
    ip netns add "$(netns_name "$r")" || return
    ip -n "$(netns_name "$r")" link set lo up
    ip -n "$(netns_name "$r")" address add "$(netns_address "$r")/32" dev lo
    ip netns exec "$(netns_name "$r")" sysctl -q -w net.ipv4.ip_forward=1 || return
  done
  for ((r = 0; r + 1 < netns_count; ++r)); do
    local here there rate="${rates[$r]:-${rates[0]}}"
    here=$(netns_name "$r") there=$(netns_name $((r + 1)))
    ip -n "$here" link add next type veth peer name prev netns "$there" || return
    ip -n "$here" link set next up
    ip -n "$there" link set prev up
    if [ "$rate" != unlimited ]; then
      netns_limit "$here" next "$rate" && netns_limit "$there" prev "$rate" || return
    fi
  done
  for ((r = 0; r < netns_count; ++r)); do
    for ((k = 0; k < netns_count; ++k)); do
      [ "$k" != "$r" ] || continue
      local dev=next hop=$((r + 1))
      if ((k < r)); then dev=prev hop=$((r - 1)); fi
      if [ "$hop" = "$k" ]; then
        ip -n "$(netns_name "$r")" route add "$(netns_address "$k")/32" dev "$dev" src "$(netns_address "$r")" || return
      else
        ip -n "$(netns_name "$r")" route add "$(netns_address "$k")/32" via "$(netns_address "$hop")" dev "$dev" onlink \
          src "$(netns_address "$r")" || return
      fi
    done
  done
}

netns_down() {
  local r
  for ((r = 0; r < netns_count; ++r)); do ip netns del "$(netns_name "$r")" 2> /dev/null; done
  netns_count=0
}

# Bytes that a rank has put on its link to the next one.
netns_bytes_to_next() { ip netns exec "$(netns_name "$1")" cat /sys/class/net/next/statistics/tx_bytes; }
