// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/io/checkpoint/checkpoint.hpp>
#include <hetsched/io/checkpoint/checkpoint_lock.hpp>
#include <hetsched/io/checkpoint/checkpoint_writer.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/io/json/device_json.hpp>
#include <hetsched/io/json/graph_json.hpp>
#include <hetsched/io/json/model_json.hpp>
#include <hetsched/io/json/pipeline_json.hpp>
#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/io/json/profile_json.hpp>
#include <hetsched/io/json/stack_json.hpp>
#include <hetsched/io/json/target_json.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/operators_csv.hpp>
#include <hetsched/io/page/memory_svg.hpp>
#include <hetsched/io/page/report.hpp>
#include <hetsched/io/page/timeline_svg.hpp>
#include <hetsched/io/schedule_csv.hpp>
#include <hetsched/io/trace/chrome_trace.hpp>
#include <hetsched/io/trace/read_trace.hpp>
#include <hetsched/io/write_file.hpp>
