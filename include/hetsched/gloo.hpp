// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/gloo/detail/bell.hpp>
#include <hetsched/gloo/detail/channel_end.hpp>
#include <hetsched/gloo/detail/channel_engine.hpp>
#include <hetsched/gloo/detail/driver.hpp>
#include <hetsched/gloo/detail/frame.hpp>
#include <hetsched/gloo/detail/introduction.hpp>
#include <hetsched/gloo/detail/line_traffic.hpp>
#include <hetsched/gloo/detail/neighbours.hpp>
#include <hetsched/gloo/detail/peer_state.hpp>
#include <hetsched/gloo/detail/proof.hpp>
#include <hetsched/gloo/detail/socket_watch.hpp>
#include <hetsched/gloo/detail/tcp_socket.hpp>
#include <hetsched/gloo/elastic.hpp>
#include <hetsched/gloo/folder_store.hpp>
#include <hetsched/gloo/gloo_communicator.hpp>
#include <hetsched/gloo/mesh.hpp>
#include <hetsched/gloo/process_place.hpp>
#include <hetsched/gloo/rendezvous.hpp>
#include <hetsched/gloo/roster.hpp>
#include <hetsched/gloo/run_on_processes.hpp>
#include <hetsched/gloo/stranger.hpp>
