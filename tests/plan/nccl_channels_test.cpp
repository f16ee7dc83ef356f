// SPDX-License-Identifier: Apache-2.0
#include <hetsched/plan/nccl_channels.hpp>

#include <doctest/doctest.h>

using namespace hetsched;

TEST_CASE("transfers over NCCL take as many channels as are a small share of the smallest GPU") {
  CHECK(nccl_channels(132) == 4);
  CHECK(nccl_channels(128) == 4);
  CHECK(nccl_channels(127) == 2);
  CHECK(nccl_channels(40) == 2);
  CHECK(nccl_channels(0) == 4);
  CHECK(nccl_channels_text(0) == "4 channels");
  CHECK(nccl_channels_text(132) == "4 channels, while transfers last 3% of the smallest GPU's 132 multiprocessors");
  CHECK(nccl_channels_text(2147483647) == "4 channels, while transfers last 0% of the smallest GPU's 2147483647 multiprocessors");
  CHECK(nccl_channels_text(40) == "2 channels, while transfers last 5% of the smallest GPU's 40 multiprocessors");
}
