// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/json/detail/choice.hpp>
#include <hetsched/io/json/stack_json.hpp>

namespace hetsched::detail {

struct state_key {
  const char* name;
  int training_memory::*bytes;
};

inline constexpr state_key state_keys[] = {{"weight_bytes", &training_memory::weight_bytes},
                                           {"gradient_bytes", &training_memory::gradient_bytes},
                                           {"optimizer_bytes", &training_memory::optimizer_bytes},
                                           {"reduced_bytes", &training_memory::reduced_bytes},
                                           {"sharded_weight_bytes", &training_memory::sharded_weight_bytes},
                                           {"working_bytes", &training_memory::working_bytes},
                                           {"working_part_bytes", &training_memory::working_part_bytes},
                                           {"accumulation_bytes", &training_memory::accumulation_bytes},
                                           {"staged_accumulation_bytes", &training_memory::staged_accumulation_bytes}};

struct precision_key {
  const char* name;
  training_memory training_stack::*state;
};

inline constexpr precision_key precision_keys[] = {
    {"bf16", &training_stack::bf16}, {"fp16", &training_stack::fp16}, {"fp32", &training_stack::fp32}};

struct number_key {
  const char* name;
  double most;
  double& (*of)(training_stack&);
};

inline constexpr number_key number_keys[] = {
    {"whole_tensors", 100, [](training_stack& s) -> double& { return s.activations.whole_tensors; }},
    {"attention_scale", 1e3, [](training_stack& s) -> double& { return s.activations.attention_scale; }},
    {"activation_scale", 1e3, [](training_stack& s) -> double& { return s.activations.activation_scale; }},
    {"loss_copies", 1e3, [](training_stack& s) -> double& { return s.activations.loss_copies; }},
    {"split_loss_copies", 1e3, [](training_stack& s) -> double& { return s.activations.split_loss_copies; }},
    {"selective_kept", 1, [](training_stack& s) -> double& { return s.activations.selective_kept; }},
    {"fragmentation", 100, [](training_stack& s) -> double& { return s.overheads.fragmentation; }},
    {"margin", 100, [](training_stack& s) -> double& { return s.overheads.margin; }},
    {"gather_overlap", 1, [](training_stack& s) -> double& { return s.gather_overlap; }},
    {"reduction_overlap", 1, [](training_stack& s) -> double& { return s.reduction_overlap; }},
    {"update_overlap", 1, [](training_stack& s) -> double& { return s.update_overlap; }},
    {"update_bandwidth", 1, [](training_stack& s) -> double& { return s.update_bandwidth; }}};

inline constexpr const char* flash_names[] = {"newest", "second", "first"};  // by flash_kernels
inline constexpr const char* product_names[] = {"same", "fp8"};
inline constexpr const char* fusion_names[] = {"none", "grouped", "absorbed"};  // by elementwise_fusion

[[nodiscard]] inline std::vector<std::string_view> stack_names() {
  std::vector<std::string_view> names;
  for (const auto& s : training_stacks()) names.push_back(s.name);
  return names;
}

[[nodiscard]] inline training_stack named_stack(const json_value& value) {
  const auto name = value.text();
  if (auto known = find_training_stack(name)) return *std::move(known);
  value.fail("there is no stack \"" + excerpt(name) + "\"; " + suggestion(name, stack_names()));
}

[[nodiscard]] inline training_stack read_stack_object(const json_value& value) {
  value.object({"format",
                "version",
                "name",
                "like",
                "bf16",
                "fp16",
                "fp32",
                "whole_tensors",
                "whole_inputs",
                "attention_scale",
                "activation_scale",
                "loss_copies",
                "split_loss_copies",
                "selective_kept",
                "runtime_bytes",
                "communicator_bytes",
                "fragmentation",
                "margin",
                "fusion",
                "attention",
                "autocast",
                "products",
                "sends",
                "host_launch_us",
                "gather_overlap",
                "reduction_overlap",
                "update_overlap",
                "update_bandwidth"});
  training_stack s;
  if (const auto like = value.find("like")) s = named_stack(*like);
  const auto name = value.at("name");
  s.name = name.name();
  for (const auto& key : precision_keys)
    if (const auto state = value.find(key.name)) {
      state->object({state_keys[0].name, state_keys[1].name, state_keys[2].name, state_keys[3].name, state_keys[4].name,
                     state_keys[5].name, state_keys[6].name, state_keys[7].name, state_keys[8].name});
      for (const auto& part : state_keys)
        if (const auto bytes = state->find(part.name)) s.*key.state.*part.bytes = bytes->count(0, 1000);
      if (state->find("working_bytes") && !state->find("working_part_bytes")) (s.*key.state).working_part_bytes = 0;
      if (state->find("accumulation_bytes") && !state->find("staged_accumulation_bytes"))
        (s.*key.state).staged_accumulation_bytes = 0;
    }
  for (const auto& key : number_keys)
    if (const auto number = value.find(key.name)) key.of(s) = number->number(0, key.most);
  if (!(s.update_bandwidth > 0)) value.at("update_bandwidth").expected("a share above 0");
  if (const auto whole = value.find("whole_inputs")) s.activations.whole_inputs = whole->boolean();
  if (const auto runtime = value.find("runtime_bytes")) s.overheads.runtime_bytes = runtime->bytes();
  if (const auto of_it = value.find("communicator_bytes")) s.overheads.communicator_bytes = of_it->bytes();
  if (const auto fusion = value.find("fusion")) {
    const auto text = fusion->text();
    const auto found = std::find(std::begin(fusion_names), std::end(fusion_names), text);
    if (found == std::end(fusion_names)) fusion->expected("none, grouped or absorbed");
    s.fusion = static_cast<elementwise_fusion>(found - std::begin(fusion_names));
  }
  if (const auto flash = value.find("attention")) {
    const auto text = flash->text();
    const auto found = std::find(std::begin(flash_names), std::end(flash_names), text);
    if (found == std::end(flash_names)) flash->expected("newest, second or first");
    s.flash = static_cast<flash_kernels>(found - std::begin(flash_names));
  }
  if (const auto autocast = value.find("autocast")) s.autocast = autocast->boolean();
  if (const auto products = value.find("products")) s.fp8_products = choice_of(*products, product_names) == 1;
  if (const auto sends = value.find("sends")) s.sends = static_cast<send_mode>(choice_of(*sends, send_modes));
  if (const auto launch = value.find("host_launch_us")) s.host_launch_s = launch->number(0, 1e6) * 1e-6;
  // A name stands for the same figures wherever it is read; what files did not always tell is as it is known.
  if (const auto known = find_training_stack(s.name)) {
    if (!value.find("sends")) s.sends = known->sends;
    if (!value.find("products")) s.fp8_products = known->fp8_products;
    for (const auto& key : precision_keys)
      for (const auto& sums : {state_keys[7], state_keys[8]})
        if (const auto state = value.find(key.name); !state || !state->find(sums.name))
          s.*key.state.*sums.bytes = *known.*key.state.*sums.bytes;
    if (s.name == training_stack{}.name)  // once it was priced without what it gathers ahead
      for (const auto& key : precision_keys)
        if (auto& m = s.*key.state; m.working_bytes == m.weight_bytes && m.working_part_bytes == 0) {
          m.working_bytes = (*known.*key.state).working_bytes;
          m.working_part_bytes = (*known.*key.state).working_part_bytes;
        }
    if (*known != s) name.expected("another name: " + s.name + " is one that the library knows, with other figures");
  }
  return s;
}

HETSCHED_INLINE training_stack read_stack(const json_value& value) {
  return value.is_text() ? named_stack(value) : read_stack_object(value);
}

[[nodiscard]] inline nlohmann::ordered_json stack_object(training_stack s) {
  nlohmann::ordered_json out{{"name", s.name}};
  for (const auto& key : precision_keys)
    for (const auto& part : state_keys) out[key.name][part.name] = s.*key.state.*part.bytes;
  for (const auto& key : number_keys) out[key.name] = key.of(s);
  out["whole_inputs"] = s.activations.whole_inputs;
  out["runtime_bytes"] = s.overheads.runtime_bytes;
  out["communicator_bytes"] = s.overheads.communicator_bytes;
  out["fusion"] = fusion_names[static_cast<int>(s.fusion)];
  out["attention"] = flash_names[static_cast<int>(s.flash)];
  out["autocast"] = s.autocast;
  out["products"] = product_names[s.fp8_products ? 1 : 0];
  out["sends"] = send_modes[as_size(s.sends)];
  out["host_launch_us"] = preimage(s.host_launch_s, s.host_launch_s * 1e6, [](double us) { return us * 1e-6; });
  return out;
}

HETSCHED_INLINE nlohmann::ordered_json write_stack(const training_stack& s) {
  const auto known = find_training_stack(s.name);
  return known && *known == s ? nlohmann::ordered_json(s.name) : stack_object(s);
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE training_stack parse_stack(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  (void)document.version_of("stack", 1);
  return detail::read_stack_object(document.value());
}

HETSCHED_INLINE training_stack read_stack(const std::string& name_or_path) {
  if (auto known = find_training_stack(name_or_path)) return *std::move(known);
  std::error_code unknown;
  if (name_or_path != "-" && !std::filesystem::exists(name_or_path, unknown))
    throw input_error("there is neither a stack nor a file " + name_or_path + "; " +
                      detail::suggestion(name_or_path, detail::stack_names()));
  return parse_stack(read_text(name_or_path), name_or_path);
}

HETSCHED_INLINE std::string to_json(const training_stack& s) {
  nlohmann::ordered_json out{{"format", "hetsched/stack"}, {"version", 1}};
  out.update(detail::stack_object(s));
  return detail::dump(out);
}

}  // namespace hetsched
