// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/io/checkpoint.hpp>
#include <hetsched/io/chrome_trace.hpp>
#include <hetsched/io/cluster_json.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/memory_svg.hpp>
#include <hetsched/io/model_json.hpp>
#include <hetsched/io/operators_csv.hpp>
#include <hetsched/io/pipeline_json.hpp>
#include <hetsched/io/plan_json.hpp>
#include <hetsched/io/profile_json.hpp>
#include <hetsched/io/read_trace.hpp>
#include <hetsched/io/report.hpp>
#include <hetsched/io/schedule_csv.hpp>
#include <hetsched/io/timeline_svg.hpp>
#include <hetsched/io/write_file.hpp>
