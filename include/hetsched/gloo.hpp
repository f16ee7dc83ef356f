// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/gloo/bell.hpp>
#include <hetsched/gloo/channel_end.hpp>
#include <hetsched/gloo/channel_engine.hpp>
#include <hetsched/gloo/driver.hpp>
#include <hetsched/gloo/elastic.hpp>
#include <hetsched/gloo/frame.hpp>
#include <hetsched/gloo/gloo_communicator.hpp>
#include <hetsched/gloo/introduction.hpp>
#include <hetsched/gloo/line_traffic.hpp>
#include <hetsched/gloo/mesh.hpp>
#include <hetsched/gloo/peer_state.hpp>
#include <hetsched/gloo/process_place.hpp>
#include <hetsched/gloo/proof.hpp>
#include <hetsched/gloo/rendezvous.hpp>
#include <hetsched/gloo/roster.hpp>
#include <hetsched/gloo/socket_watch.hpp>
#include <hetsched/gloo/stranger.hpp>
#include <hetsched/gloo/tcp_socket.hpp>
