// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/models/training_stack.hpp>
#include <hetsched/io/json/detail/choice.hpp>
#include <hetsched/io/json/target_json.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/schedule/builders/named.hpp>

namespace hetsched::detail {

inline constexpr const char* cut_names[] = {"layers", "blocks", "blocks_with_ends"};  // by target_cuts

struct degree_key {
  const char* name;
  int degrees::*of;
};

inline constexpr degree_key degree_keys[] = {
    {"data", &degrees::data}, {"context", &degrees::context}, {"tensor", &degrees::tensor}, {"expert", &degrees::expert}};

struct target_rule {
  const char* name;
  bool plan_target::*of;
};

inline constexpr target_rule target_rules[] = {{"recompute_parted", &plan_target::recompute_parted},
                                               {"one_precision", &plan_target::one_precision},
                                               {"fp16_experts", &plan_target::fp16_experts},
                                               {"joined_by_nccl", &plan_target::joined_by_nccl},
                                               {"hosts_in_a_row", &plan_target::hosts_in_a_row},
                                               {"further_tokens", &plan_target::further_tokens},
                                               {"any_order", &plan_target::any_order}};

[[nodiscard]] inline std::vector<std::string_view> target_names() {
  std::vector<std::string_view> names;
  for (const auto& t : plan_targets()) names.push_back(t.name);
  return names;
}

[[nodiscard]] inline plan_target read_target_object(const json_value& value) {
  value.object({"format",        "version", "zero_alone",     "equal_at_ends", "several_pipelines", "whole_rounds",
                "uneven_shares", "like",    "program",        "strict",        "fp16_experts",      "recompute",
                "most",          "stack",   "least_replicas", "one_precision", "recompute_parted",  "schedules",
                "cuts",          "zero",    "joined_by_nccl", "precisions",    "hosts_in_a_row",    "equal_pipelines",
                "name",          "equal",   "further_tokens", "any_order"});
  plan_target t;
  if (const auto like = value.find("like")) t = plan_targets()[as_size(choice_of(*like, target_names()))];
  const auto name = value.at("name");
  t.name = name.name();
  if (const auto program = value.find("program")) t.program = program->name();
  if (const auto stack = value.find("stack")) {
    std::vector<std::string_view> known;
    for (const auto& s : training_stacks()) known.push_back(s.name);
    t.stack = known[as_size(choice_of(*stack, known))];
  }
  if (const auto several = value.find("several_pipelines")) t.several_pipelines = several->boolean();
  if (const auto equal = value.find("equal_pipelines")) t.equal_pipelines = equal->boolean();
  if (const auto uneven = value.find("uneven_shares")) t.uneven_shares = uneven->boolean();
  if (const auto cuts = value.find("cuts")) t.cuts = static_cast<target_cuts>(choice_of(*cuts, cut_names));
  if (const auto most = value.find("most")) {
    most->object({degree_keys[0].name, degree_keys[1].name, degree_keys[2].name, degree_keys[3].name});
    t.most = plan_target{}.most;
    for (const auto& key : degree_keys)
      if (const auto degree = most->find(key.name)) t.most.*key.of = degree->count();
  }
  if (const auto least = value.find("least_replicas")) t.least_replicas = least->count();
  const auto trait = [](const json_value& x) { return static_cast<stage_trait>(choice_of(x, stage_traits)); };
  if (const auto equal = value.find("equal")) t.equal = equal->list(trait);
  if (const auto ends = value.find("equal_at_ends")) t.equal_at_ends = ends->list(trait);
  if (const auto kinds = value.find("recompute"))
    t.recompute = kinds->list([](const json_value& x) {
      return static_cast<recomputation>(choice_of(x, std::array{"none", "selective", "full"}));
    });
  const auto zero_stage = [](const json_value& x) { return x.count(0, 3); };
  if (const auto zero = value.find("zero")) t.zero = zero->list(zero_stage);
  if (const auto alone = value.find("zero_alone")) t.zero_alone = alone->list(zero_stage);
  if (const auto schedules = value.find("schedules")) {
    auto known = schedule_names();
    known.push_back(auto_schedule_name);
    t.schedules = schedules->list([&](const json_value& x) { return schedule_named(known[as_size(choice_of(x, known))]); });
  }
  if (const auto rounds = value.find("whole_rounds")) t.whole_rounds = rounds->boolean();
  constexpr std::array computed{"fp32", "tf32", "fp16", "bf16"};  // by precision
  if (const auto kinds = value.find("precisions"))
    t.precisions = kinds->list([&](const json_value& x) { return static_cast<precision>(choice_of(x, computed)); });
  for (const auto& [key, of] : target_rules)
    if (const auto holds = value.find(key)) t.*of = holds->boolean();
  if (const auto strict = value.find("strict")) t.strict = strict->boolean();
  try {
    validate(t);
  } catch (const input_error& wrong) {
    value.fail(wrong.what());
  }
  // A name stands for the same rules wherever it is read; what files did not always tell is as it is known.
  if (const auto known = find_plan_target(t.name)) {
    if (!value.find("recompute_parted")) t.recompute_parted = known->recompute_parted;
    if (!value.find("further_tokens")) t.further_tokens = known->further_tokens;
    if (!value.find("any_order")) t.any_order = known->any_order;
    if (*known != t) name.expected("another name: " + t.name + " is one that the library knows, with other rules");
  }
  return t;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE plan_target parse_target(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  (void)document.version_of("target", 1);
  return detail::read_target_object(document.value());
}

HETSCHED_INLINE plan_target read_target(const std::string& name_or_path) {
  if (auto known = find_plan_target(name_or_path)) return *std::move(known);
  std::error_code unknown;
  if (name_or_path != "-" && !std::filesystem::exists(name_or_path, unknown))
    throw input_error("there is neither a target nor a file " + name_or_path + "; " +
                      detail::suggestion(name_or_path, detail::target_names()));
  return parse_target(read_text(name_or_path), name_or_path);
}

HETSCHED_INLINE std::string to_json(const plan_target& t) {
  using json = nlohmann::ordered_json;
  json out{{"format", "hetsched/target"}, {"version", 1}, {"name", t.name}};
  if (!t.program.empty()) out["program"] = t.program;
  out["stack"] = t.stack;
  out["several_pipelines"] = t.several_pipelines;
  out["equal_pipelines"] = t.equal_pipelines;
  out["uneven_shares"] = t.uneven_shares;
  out["cuts"] = detail::cut_names[static_cast<int>(t.cuts)];
  for (const auto& key : detail::degree_keys)
    if (t.most.*key.of < INT_MAX) out["most"][key.name] = t.most.*key.of;
  out["least_replicas"] = t.least_replicas;
  for (const auto& [key, traits] : {std::pair{"equal", &t.equal}, std::pair{"equal_at_ends", &t.equal_at_ends}}) {
    out[key] = json::array();
    for (const auto trait : *traits) out[key].push_back(name_of(trait));
  }
  auto& kinds = out["recompute"] = json::array();
  for (const auto r : t.recompute) kinds.push_back(name_of(r));
  out["zero"] = t.zero;
  out["zero_alone"] = t.zero_alone;
  auto& run = out["schedules"] = json::array();
  for (const auto id : t.schedules) run.push_back(name_of(id));
  out["whole_rounds"] = t.whole_rounds;
  auto& computed = out["precisions"] = json::array();
  for (const auto p : t.precisions) computed.push_back(name_of(p));
  for (const auto& [key, of] : detail::target_rules) out[key] = t.*of;
  out["strict"] = t.strict;
  return detail::dump(out);
}

}  // namespace hetsched
