// SPDX-License-Identifier: Apache-2.0
// hetsched-plan: cuts a model into pipeline stages over a mixed cluster.
#include "plan/command.hpp"

int main(int argc, char** argv) { return command::plan_main(argc, argv, hetsched::planners_and_baselines()); }
