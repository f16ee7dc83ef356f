// SPDX-License-Identifier: Apache-2.0
#include <hetsched/hetsched.hpp>
#include <hetsched/io.hpp>

int main() { return hetsched::read_cluster("cluster.json").device_count(); }
