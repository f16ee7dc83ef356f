// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/models/training_stack.hpp>
#include <hetsched/plan/detail/device_rules.hpp>
#include <hetsched/plan/stage_parts.hpp>
#include <hetsched/plan/target.hpp>
#include <hetsched/plan/validate.hpp>
#include <hetsched/schedule/builders/named.hpp>

namespace hetsched {

namespace detail {

template <class T>
[[nodiscard]] bool has(const std::vector<T>& all, const T& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

[[nodiscard]] inline std::string joined(const std::vector<std::string>& words, const std::string& last = " and ") {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : i + 1 == words.size() ? last : ", ") + words[i];
  return text;
}

[[nodiscard]] inline std::vector<std::string> names_of(const std::vector<recomputation>& kinds) {
  std::vector<std::string> names;
  for (const auto r : kinds) names.emplace_back(name_of(r));
  return names;
}

[[nodiscard]] inline std::vector<std::string> texts_of(const std::vector<int>& numbers) {
  std::vector<std::string> texts;
  for (const int n : numbers) texts.push_back(std::to_string(n));
  return texts;
}

template <class Kind>
[[nodiscard]] std::vector<std::string> names_of(const std::vector<Kind>& kinds) {
  std::vector<std::string> names;
  for (const auto k : kinds) names.emplace_back(name_of(k));
  return names;
}

// How the stages of a schedule lie on its ranks: one each; going round; there and back; as two directions have them, or anyhow.
enum class stage_shape { line, loop, back, other };

[[nodiscard]] inline stage_shape shape_of(std::optional<schedule_id> id) {
  using enum schedule_id;
  const auto* known = find_builder(id);
  if (!known || !known->cuts_stages) return stage_shape::line;
  if (id == interleaved_1f1b || id == looped_bfs) return stage_shape::loop;
  return id == dualpipe || id == chimera ? stage_shape::other : stage_shape::back;
}

[[nodiscard]] inline stage_shape shape_of(const schedule_plan& how) {
  if (!how.actions) return shape_of(id_of(how));
  const auto& order = *how.actions;
  if (order.ranks < 1 || order.stages < 1 || order.directions < 1 ||
      order.rank_of.size() != as_size(order.directions) * as_size(order.stages))
    throw input_error("schedule " + how.name + ": its actions have no rank for each stage");
  if (order.directions != 1) return stage_shape::other;
  bool round = true, back = order.stages / 2 == order.ranks && order.stages % 2 == 0;
  for (int v = 0; v < order.stages; ++v) {
    round = round && order.rank(0, v) == v % order.ranks;
    back = back && order.rank(0, v) == (v < order.ranks ? v : order.stages - 1 - v);
  }
  if (round) return order.stages == order.ranks ? stage_shape::line : stage_shape::loop;
  return back ? stage_shape::back : stage_shape::other;
}

[[nodiscard]] inline bool has_weight_backwards(const schedule& order) {
  for (const auto& lane : order.lanes)
    for (const auto& a : lane.actions)
      if (a.kind == action_kind::backward_weight) return true;
  return false;
}

/// Compares a plan with a target. `hardware`: of the devices, if it is known.
class gap_finder {
 public:
  gap_finder(const plan& p, const plan_target& t, const cluster* hardware = nullptr)
      : plan_(p), target_(t), hardware_(hardware), asked_(find_precision(p.setting.precision)) {}

  [[nodiscard]] std::vector<target_gap> run() {
    const auto count = plan_.pipelines.size();
    if (const int further = plan_.setting.further_tokens; further > 0 && !target_.further_tokens)
      add("plan", "a head that predicts " + std::to_string(further) + " further " + (further == 1 ? "token" : "tokens"),
          "one that predicts the next");
    if (count > 1 && !target_.several_pipelines) {
      if (!target_.equal_pipelines)
        add("plan", std::to_string(count) + " pipelines", "1");
      else if (auto unlike = unlike_pipelines(plan_))
        found_.push_back(*std::move(unlike));
      else if (const auto most = target_.most.data; most < INT_MAX)
        for (const auto& s : plan_.pipelines.front().stages)
          if (const auto all = static_cast<std::int64_t>(count) * s.degrees.data; all > most) {
            add("plan", "a data degree of " + std::to_string(all) + " over all pipelines", "at most " + std::to_string(most));
            break;
          }
    }
    for (std::size_t l = 0; l < count; ++l) {
      check(l);
      for (std::size_t i = 0; i < plan_.pipelines[l].stages.size(); ++i) look_at_stage(l, i);
      for (const auto trait : target_.equal) look_at_trait(l, trait);
      look_at_ends(l);
      look_at_schedule(l);
      look_at_parts(l);
      look_at_precision(l);
      look_at_hosts(l);
    }
    look_at_nccl();
    if (target_.strict)
      for (auto& gap : found_) gap.runs_anyway = false;
    std::stable_partition(found_.begin(), found_.end(), [](const target_gap& g) { return !g.runs_anyway; });
    return std::move(found_);
  }

 private:
  void add(std::string place, std::string found, std::string expected, bool runs_anyway = false) {
    found_.push_back({std::move(place), std::move(found), std::move(expected), runs_anyway});
  }

  void check(std::size_t l) const {
    const auto& stages = plan_.pipelines[l].stages;
    if (stages.empty()) throw input_error("a pipeline needs at least one stage");
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto& d = stages[i].degrees;
      if (stages[i].layers.first < 0 || stages[i].layers.last <= stages[i].layers.first ||
          std::min({d.data, d.context, d.tensor, d.expert}) < 1)
        throw input_error(stage_name(plan_, l, i) + ": it needs at least one layer, and degrees of at least 1");
      if (hardware_)
        for (const auto& g : stages[i].devices)
          if (g.mesh.subcluster < 0 || as_size(g.mesh.subcluster) >= hardware_->subclusters.size() || g.first_device < 0 ||
              device_count({g}) > at(hardware_->subclusters, g.mesh.subcluster).device_count() - g.first_device)
            throw input_error(stage_name(plan_, l, i) + ": the cluster does not have its devices");
    }
  }

  void look_at_stage(std::size_t l, std::size_t i) {
    const auto& line = plan_.pipelines[l];
    const auto& s = line.stages[i];
    const auto place = stage_name(plan_, l, i);
    if (!target_.uneven_shares) {
      if (are_uneven(s.shares.data) || are_uneven(s.shares.context) || are_uneven(s.shares.tensor) || are_uneven(s.shares.state))
        add(place, "uneven shares of its work", "equal ones");
      else if (line.microbatch_size % s.degrees.data != 0)
        add(place, "a data degree of " + std::to_string(s.degrees.data),
            "one that divides microbatches of " + std::to_string(line.microbatch_size) + " samples");
      const auto sequence = plan_.setting.sequence;
      if (std::int64_t{s.degrees.context} * s.degrees.tensor > 1 &&
          sequence % (std::int64_t{s.degrees.context} * s.degrees.tensor) != 0)
        add(place, "context x tensor degrees of " + std::to_string(s.degrees.context) + " x " + std::to_string(s.degrees.tensor),
            "ones that divide sequences of " + std::to_string(sequence) + " tokens");
    }
    for (const auto& [name, degree, most] :
         {std::tuple{"data", s.degrees.data, target_.most.data}, std::tuple{"context", s.degrees.context, target_.most.context},
          std::tuple{"tensor", s.degrees.tensor, target_.most.tensor},
          std::tuple{"expert", s.degrees.expert, target_.most.expert}})
      if (degree > most)
        add(place, name + (" degree " + std::to_string(degree)), most == 1 ? "1" : "at most " + std::to_string(most));
    if (const auto have = replicas(s.degrees);
        (line.stages.size() > 1 || s.degrees.device_count() > 1) && have < target_.least_replicas)
      add(place, std::to_string(have) + (have == 1 ? " replica" : " replicas"),
          "at least " + std::to_string(target_.least_replicas));
    look_at_cut(l, i, place);
    if (!has(target_.recompute, s.recompute))
      add(place, "recompute " + std::string(name_of(s.recompute)), joined(names_of(target_.recompute), " or "), true);
    auto zero = target_.zero;
    if ((plan_.pipelines.size() == 1 || !target_.several_pipelines) && line.stages.size() == 1)
      zero.insert(zero.end(), target_.zero_alone.begin(), target_.zero_alone.end());
    if (matters(stage_trait::zero, how(s)) && !has(zero, s.zero))
      add(place, "ZeRO stage " + std::to_string(s.zero), joined(texts_of(zero), " or "), true);
  }

  // Of transformers in parts of blocks, embedding and head aside.
  void look_at_cut(std::size_t l, std::size_t i, const std::string& place) {
    if (plan_.setting.costs == "hexiscale") {
      if (i == 0) add("plan", "costs of blocks alone", "those of embedding and head, too");
      return;
    }
    if (target_.cuts == target_cuts::layers) return;
    const auto& stages = plan_.pipelines[l].stages;
    const auto layers = stages[i].layers;
    const int parts = plan_.setting.granularity == "sublayer" ? 3 : 1, end = stages.back().layers.last;
    if (end < 2 || (end - 2) % parts != 0 || (end == 2 && target_.cuts == target_cuts::blocks_with_ends)) {
      if (i == 0) add("plan", std::to_string(end) + " layers", "embedding, blocks of " + std::to_string(parts) + " and head");
      return;
    }
    if (layers.first > 0 && layers.first < end - 1 && (layers.first - 1) % parts != 0)
      add(place, "a begin inside block " + std::to_string((layers.first - 1) / parts),
          "cuts between blocks (hetsched-plan --granularity block)");
    if (target_.cuts == target_cuts::blocks) return;
    if (layers.last == 1) add(place, "the embedding alone", "at least a block with it");
    if (layers.first == end - 1) add(place, "the head alone", "at least a block with it");
  }

  // Not stage_plan::where, which wants all devices of a stage in one subcluster.
  [[nodiscard]] static placement how(const stage_plan& s) {
    return {.degrees = s.degrees, .recompute = s.recompute, .zero = s.zero};
  }

  // Whether two stages agree in a trait; tells if not.
  bool compare(std::size_t l, stage_trait trait, std::size_t first, std::size_t other) {
    const auto& stages = plan_.pipelines[l].stages;
    const int value = value_of(trait, how(stages[other])), wanted = value_of(trait, how(stages[first]));
    if (value == wanted) return true;
    const bool saves = trait == stage_trait::recompute || trait == stage_trait::zero;
    const auto text = [&](int v) {
      return trait == stage_trait::recompute ? std::string(name_of(static_cast<recomputation>(v))) : std::to_string(v);
    };
    const auto what = trait == stage_trait::zero ? "ZeRO stage" : std::string(name_of(trait)) + (saves ? "" : " degree");
    add(stage_name(plan_, l, other), what + " " + text(value), text(wanted) + " as in stage " + std::to_string(first), saves);
    return false;
  }

  // Tells of the first stage that differs from the first one of which the trait says anything.
  void look_at_trait(std::size_t l, stage_trait trait) {
    const auto& stages = plan_.pipelines[l].stages;
    std::size_t first = stages.size();
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (!matters(trait, how(stages[i]))) continue;
      if (first == stages.size()) first = i;
      if (!compare(l, trait, first, i)) return;
    }
  }

  void look_at_ends(std::size_t l) {
    const auto& line = plan_.pipelines[l];
    if (line.copy_sync.empty()) return;  // nothing that two stages share
    const auto last = line.stages.size() - 1;
    for (const auto trait : target_.equal_at_ends)
      if (matters(trait, how(line.stages.front())) && matters(trait, how(line.stages.back()))) compare(l, trait, 0, last);
  }

  // Tells of the first stage that recomputes although backwards are in parts.
  void look_at_parts(std::size_t l) {
    const auto& line = plan_.pipelines[l];
    const auto& stages = line.stages;
    const auto recomputes = [](const stage_plan& s) { return s.recompute != recomputation::none; };
    const auto first = std::find_if(stages.begin(), stages.end(), recomputes);
    if (target_.recompute_parted || first == stages.end()) return;
    const auto id = id_of(line.schedule);
    if (line.schedule.actions ? has_weight_backwards(*line.schedule.actions) : id && parts_backwards(*id))
      add(stage_name(plan_, l, static_cast<std::size_t>(first - stages.begin())),
          "recompute " + std::string(name_of(first->recompute)) + " under schedule " + line.schedule.name +
              ", which parts backwards",
          "none", true);
  }

  void look_at_schedule(std::size_t l) {
    const auto& name = plan_.pipelines[l].schedule.name;
    const auto& known = target_.schedules;
    const auto shape = shape_of(plan_.pipelines[l].schedule);
    const bool same = std::any_of(known.begin(), known.end(), [&](schedule_id own) { return shape_of(own) == shape; });
    const auto place = plan_.pipelines.size() > 1 ? "pipeline " + std::to_string(l) : std::string("plan");
    const auto& listed = plan_.pipelines[l].schedule.actions;
    const bool as_listed = target_.any_order && listed && listed->directions == 1;
    if (!as_listed && !allows(target_, name))
      add(place, "schedule " + name, joined(names_of(known), " or "), same && shape != stage_shape::other);
    if (shape == stage_shape::line && !known.empty() && known.front() == schedule_id::one_f_one_b) look_at_room(l);
    if (shape == stage_shape::loop && target_.whole_rounds) {
      const int ranks = static_cast<int>(plan_.pipelines[l].stages.size()), count = plan_.pipelines[l].microbatches;
      if (count % ranks != 0)
        add(place, std::to_string(count) + " microbatches under " + name, "a multiple of " + std::to_string(ranks) + " stages");
    }
    if (shape == stage_shape::loop && !known.empty() && plan_.pipelines[l].stages.size() < 2)
      add(place, "schedule " + name + " of one stage", "at least two");
    if (shape != stage_shape::line && target_.cuts != target_cuts::layers && plan_.setting.granularity == "sublayer")
      add(place, "schedule " + name + ", for which stages are cut anew inside blocks", "layers of --granularity block");
  }

  // Of targets that run 1F1B whatever the plan's order is: stage s of S keeps min(M, S - s) microbatches.
  void look_at_room(std::size_t l) {
    const auto& line = plan_.pipelines[l];
    const auto rooms = activation_rooms(line);
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      const int kept = std::min(line.microbatches, static_cast<int>(rooms.size() - i));
      const double each = static_cast<double>(line.stages[i].cost.activation_bytes);
      if (each > 0 && kept * each > rooms[i] * (1 + tolerance::sums))
        add(stage_name(plan_, l, i),
            "room for " + std::to_string(static_cast<int>(std::max(0.0, rooms[i] / each))) + " microbatches",
            "for " + std::to_string(kept) + ", which it keeps under 1f1b");
    }
  }

  // In which devices of a stage compute, of each kind once; none where costs do not name a precision.
  [[nodiscard]] std::vector<precision> precisions_of(const stage_plan& s) const {
    std::vector<precision> found;
    if (!asked_) return found;
    if (!hardware_) return {*asked_};
    for (const auto& g : s.devices)
      if (const auto p = at(hardware_->subclusters, g.mesh.subcluster).device.computes_in(*asked_); !has(found, p))
        found.push_back(p);
    return found;
  }

  // Tells of the first stage with each thing that is wrong.
  void look_at_precision(std::size_t l) {
    const auto& stages = plan_.pipelines[l].stages;
    auto own = std::optional<precision>();
    auto& first = target_.several_pipelines ? own : first_;  // of copies that are one to the target, the first one's
    bool known = true, alike = true, experts = true;
    for (std::size_t i = 0; i < stages.size(); ++i)
      for (const auto p : precisions_of(stages[i])) {
        const auto place = stage_name(plan_, l, i);
        const auto name = std::string(name_of(p));
        const auto once = [&](bool& so_far, bool holds, const std::string& found, const std::string& expected) {
          if (so_far && !holds) add(place, found, expected);
          so_far = so_far && holds;
        };
        once(known, has(target_.precisions, p), "devices that compute in " + name, joined(names_of(target_.precisions), " or "));
        if (!first) first = p;
        once(alike, bits_of(p) == bits_of(*first) || !target_.one_precision, "devices that compute in " + name,
             std::string(name_of(*first)) + " as in stage 0");
        once(experts, p != precision::fp16 || target_.fp16_experts || stages[i].degrees.expert == 1,
             "expert degree " + std::to_string(stages[i].degrees.expert) + " in fp16", "1");
      }
  }

  // Of launchers that know a host by its name: ranks go stage by stage.
  void look_at_hosts(std::size_t l) {
    if (!hardware_ || !target_.hosts_in_a_row) return;
    const auto& stages = plan_.pipelines[l].stages;
    std::vector<std::pair<int, int>> met;  // subcluster and node, in the order of ranks
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (is_mixed(stages[i].devices)) add(stage_name(plan_, l, i), "devices of several subclusters", "of one");
      for (const auto& g : stages[i].devices) {
        const auto& sub = at(hardware_->subclusters, g.mesh.subcluster);
        const int last = g.first_device + g.mesh.device_count() - 1;
        for (int node = g.first_device / sub.devices_per_node; node <= last / sub.devices_per_node; ++node) {
          const std::pair host{g.mesh.subcluster, node};
          if (!met.empty() && met.back() == host) continue;
          if (has(met, host)) {
            add(stage_name(plan_, l, i), "devices of node " + std::to_string(node) + " of " + sub.name + " again",
                "all ranks of a host one after another");
            return;
          }
          met.push_back(host);
        }
      }
    }
  }

  void look_at_nccl() {
    if (!hardware_ || !target_.joined_by_nccl) return;
    std::vector<std::vector<int>> nodes(hardware_->subclusters.size());  // in use
    for (const auto& line : plan_.pipelines)
      for (const auto& s : line.stages)
        for (const auto& g : s.devices) {
          const int per_node = at(hardware_->subclusters, g.mesh.subcluster).devices_per_node;
          for (int n = g.first_device / per_node; n <= (g.first_device + g.mesh.device_count() - 1) / per_node; ++n)
            if (auto& own = at(nodes, g.mesh.subcluster); !has(own, n)) own.push_back(n);
        }
    for (std::size_t b = 0; b < nodes.size(); ++b)
      for (std::size_t a = 0; a <= b; ++a) {
        const bool used = a == b ? nodes[a].size() > (known_to_nccl(hardware_->subclusters[a].device) ? 1 : 0)
                                 : !nodes[a].empty() && !nodes[b].empty();
        if (!used || joined_by_nccl(*hardware_, static_cast<int>(a), static_cast<int>(b))) continue;
        const auto &first = hardware_->subclusters[a].name, &second = hardware_->subclusters[b].name;
        add("plan",
            (a < b                 ? "devices of " + first + " and "
             : nodes[a].size() > 1 ? "several nodes of "
                                   : "devices of ") +
                second,
            "such as NCCL joins");
        return;
      }
  }

  const plan& plan_;
  const plan_target& target_;
  const cluster* hardware_;
  std::optional<precision> asked_, first_;
  std::vector<target_gap> found_;
};

}  // namespace detail

HETSCHED_INLINE const std::vector<plan_target>& plan_targets() {
  static const std::vector<plan_target> all = [] {
    using enum stage_trait;
    using enum recomputation;
    using enum schedule_id;
    // ZeRO 3 is run in one pipeline of one direction only (runtime/layout/model_parameter.hpp), which is no trait.
    const plan_target own{
        .name = "hetsched", .program = "hetsched-train and this library's trainer", .zero = {0, 1, 2}, .strict = true};

    // Megatron-LM core 0.14: --pipeline-model-parallel-layout names what each virtual stage has, in whole blocks; all other sizes
    // are flags of the whole run (megatron/core/parallel_state.py, megatron/training/arguments.py). The distributed optimizer
    // shares out state as ZeRO 1. Schedules are those of megatron/core/pipeline_parallel/schedules.py, of which the interleaved
    // one needs two ranks. One of --bf16 and --fp16 for all ranks, which all are in NCCL's groups; "Expert parallelism is not
    // supported with fp16 training".
    const plan_target megatron{.name = "megatron",
                               .program = "Megatron-LM core 0.14 and later",
                               .stack = "megatron",
                               .several_pipelines = false,
                               .uneven_shares = false,
                               .cuts = target_cuts::blocks,
                               .equal = {data, context, tensor, expert, recompute, zero},
                               .zero = {0, 1},
                               .schedules = {one_f_one_b, interleaved_1f1b},
                               .whole_rounds = true,
                               .one_precision = true,
                               .fp16_experts = false,
                               .joined_by_nccl = true};

    // torch.distributed.pipelining of PyTorch 2.9 with the script of hetsched-export: whole modules of the user's, nothing inside
    // them is parallel. State is shared out by FSDP2, which a pipeline keeps whole until the last microbatch: ZeRO 1. The script
    // recomputes the layers of a stage or none (torch.utils.checkpoint); where backwards come in parts
    // (torch/distributed/pipelining/_backward.py), each part would recompute them again. Any order of one direction can be read
    // from a table, of stages that lie in a row, round, or there and back.
    const plan_target torch{.name = "torch",
                            .program = "torch.distributed.pipelining of PyTorch 2.9 and later",
                            .stack = "ddp",
                            .several_pipelines = false,
                            .uneven_shares = false,
                            .most = {.data = INT_MAX},
                            .equal = {data},
                            .recompute = {none, full},
                            .recompute_parted = false,
                            .zero = {0, 1},
                            .schedules = {exact_1f1b, searched, gpipe, one_f_one_b, eager_1f1b, h1f1b, virtual_1f1b,
                                          interleaved_1f1b, looped_bfs, zb_h1, zb_h2, zb_v, v_half, v_min, dualpipe_v},
                            .joined_by_nccl = true,
                            .further_tokens = false,
                            .any_order = true};

    // torchtitan: module_fqns_per_model_part cuts between blocks, pipeline_parallel_schedule_csv takes any order, degrees are of
    // the whole run (torchtitan/config/job_config.py). Replicas are FSDP2's; under a pipeline it keeps weights and gradients
    // whole until the last microbatch. Plain data parallelism does not go with other kinds. Of its mixed precision FSDP is the
    // only way under a pipeline (torchtitan/distributed/utils.py, maybe_enable_amp): one replica would train in fp32. Its
    // mixed_precision_param is bfloat16 or float32.
    auto torchtitan = torch;
    torchtitan.name = torchtitan.stack = "torchtitan";
    torchtitan.program = "torchtitan on PyTorch 2.9 and later";
    torchtitan.cuts = target_cuts::blocks;
    torchtitan.most = own.most;
    torchtitan.equal = megatron.equal;
    torchtitan.recompute = own.recompute;
    torchtitan.least_replicas = 2;
    torchtitan.zero = {1};
    torchtitan.any_order = false;
    torchtitan.zero_alone = {2, 3};
    torchtitan.precisions = {precision::fp32, precision::tf32, precision::bf16};
    torchtitan.one_precision = true;

    // FlagScale's fork of Megatron-LM, hetero_process_meshes and hetero_pipeline_layer_split (flagscale/train/arguments.py):
    // every mesh has its own tensor and data degree, one kind of device and none of context, a stage of the embedding alone and
    // virtual stages are refused. Each stage recomputes all or nothing. Expert degrees may differ unless one is 1; here they do
    // not. Without NCCL between them hosts communicate themselves (hetero_use_cpu_communication). Its runner knows a host by its
    // name, and counts ranks host by host.
    auto flagscale = megatron;
    flagscale.name = "flagscale";
    flagscale.program = "FlagScale's training on Megatron-LM";
    flagscale.equal_pipelines = false;
    flagscale.further_tokens = false;
    flagscale.cuts = target_cuts::blocks_with_ends;
    flagscale.most.context = 1;
    flagscale.equal = {expert, zero};
    flagscale.recompute = {none, full};
    flagscale.equal_at_ends = {data, tensor};
    flagscale.schedules = {one_f_one_b};
    flagscale.joined_by_nccl = false;
    flagscale.hosts_in_a_row = true;

    // DeepSpeed's PipelineModule and PipelineEngine: layers of a list in a row, under 1F1B (runtime/pipe/schedule.py); the engine
    // takes no ZeRO stage above 1; activation_checkpoint_interval of 1 is full
    // recomputation.
    auto deepspeed = megatron;
    deepspeed.name = deepspeed.stack = "deepspeed";
    deepspeed.further_tokens = false;
    deepspeed.program = "DeepSpeed 0.16 and later, PipelineModule";
    deepspeed.most = torch.most;
    deepspeed.equal = {data, recompute, zero};
    deepspeed.recompute = {none, full};
    deepspeed.schedules = {one_f_one_b};
    return std::vector{own, megatron, torch, torchtitan, flagscale, deepspeed};
  }();
  return all;
}

HETSCHED_INLINE std::optional<plan_target> find_plan_target(std::string_view name) {
  for (const auto& t : plan_targets())
    if (t.name == name) return t;
  return std::nullopt;
}

HETSCHED_INLINE void validate(const plan_target& t) {
  if (t.name.empty()) throw input_error("a target needs a name");
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw input_error("target " + t.name + ": " + what);
  };
  require(find_training_stack(t.stack).has_value(), "there is no stack " + t.stack);
  require(std::min({t.most.data, t.most.context, t.most.tensor, t.most.expert}) >= 1, "degrees must be at least 1");
  require(t.least_replicas >= 1, "least_replicas must be at least 1");
  require(!t.recompute.empty() && !t.zero.empty(), "it needs a kind of recomputation and a ZeRO stage, if only none and 0");
  require(!t.precisions.empty(), "it needs a precision");
  for (const auto* stages : {&t.zero, &t.zero_alone})
    for (const int z : *stages) require(z >= 0 && z <= 3, "there is no ZeRO stage " + std::to_string(z));
  for (const auto id : t.schedules) require(!name_of(id).empty(), "there is no schedule " + std::to_string(static_cast<int>(id)));
}

HETSCHED_INLINE int value_of(stage_trait trait, const placement& where) {
  switch (trait) {
    case stage_trait::data:
      return where.degrees.data;
    case stage_trait::context:
      return where.degrees.context;
    case stage_trait::tensor:
      return where.degrees.tensor;
    case stage_trait::expert:
      return where.degrees.expert;
    case stage_trait::recompute:
      return static_cast<int>(where.recompute);
    case stage_trait::zero:
      return where.zero;
  }
  return 0;
}

HETSCHED_INLINE bool matters(stage_trait trait, const placement& where) {
  return trait != stage_trait::zero || replicas(where.degrees) > 1;
}

HETSCHED_INLINE bool allows(const plan_target& t, const placement& where, bool alone) {
  const auto& d = where.degrees;
  const bool small =
      d.data <= t.most.data && d.context <= t.most.context && d.tensor <= t.most.tensor && d.expert <= t.most.expert;
  return small && (replicas(d) >= t.least_replicas || (alone && d.device_count() == 1)) &&
         detail::has(t.recompute, where.recompute) &&
         (!matters(stage_trait::zero, where) || detail::has(t.zero, where.zero) ||
          (alone && detail::has(t.zero_alone, where.zero)));
}

HETSCHED_INLINE bool allows(const plan_target& t, schedule_id schedule) {
  return t.schedules.empty() || detail::has(t.schedules, schedule);
}

HETSCHED_INLINE bool allows(const plan_target& t, std::string_view schedule_name) {
  const auto id = find_schedule_id(schedule_name);
  return id ? allows(t, *id) : t.schedules.empty();
}

HETSCHED_INLINE bool parts_backwards(std::string_view schedule_name) { return parts_backwards(schedule_named(schedule_name)); }

HETSCHED_INLINE bool parts_backwards(schedule_id schedule) {
  if (schedule == schedule_id::searched) return true;
  // What the builder makes of two equal ranks, and as many microbatches as any of them wants.
  const pipeline two{.forward_s = {1, 1}, .backward_s = {2, 2}, .transfer_s = {0}, .weight_backward_s = {1, 1}};
  return detail::has_weight_backwards(build_schedule(schedule, two, 8));
}

HETSCHED_INLINE std::string to_text(const target_gap& gap) { return gap.place + ": " + gap.found + ", expected " + gap.expected; }

HETSCHED_INLINE std::vector<target_gap> gaps(const plan& p, const plan_target& t) { return detail::gap_finder(p, t).run(); }

HETSCHED_INLINE std::vector<target_gap> gaps(const plan& p, const plan_target& t, const cluster& hardware) {
  validate(hardware);
  return detail::gap_finder(p, t, &hardware).run();
}

namespace detail {

[[nodiscard]] inline bool all_run_anyway(const std::vector<target_gap>& found) {
  return found.empty() || found.front().runs_anyway;
}

}  // namespace detail

HETSCHED_INLINE std::optional<target_gap> unlike_pipelines(const plan& p) {
  const auto differs = [&](std::size_t l, const std::string& what, bool runs_anyway = false) {
    return target_gap{"pipeline " + std::to_string(l), what, "the same as in pipeline 0", runs_anyway};
  };
  for (const auto& line : p.pipelines) {
    if (line.stages.empty()) throw input_error("a pipeline needs at least one stage");
    for (const auto& s : line.stages)
      if (s.layers.first < 0 || s.layers.last <= s.layers.first ||
          std::min({s.degrees.data, s.degrees.context, s.degrees.tensor, s.degrees.expert}) < 1)
        throw input_error("a stage needs at least one layer, and degrees of at least 1");
  }
  std::optional<target_gap> order;
  for (std::size_t l = 1; l < p.pipelines.size(); ++l) {
    const auto &one = p.pipelines[l], &first = p.pipelines.front();
    if (one.microbatches != first.microbatches || one.microbatch_size != first.microbatch_size)
      return differs(l, "other microbatches");
    if (one.stages.size() != first.stages.size()) return differs(l, std::to_string(one.stages.size()) + " stages");
    bool same_order = one.schedule == first.schedule;
    for (std::size_t i = 0; i < one.stages.size(); ++i) {
      const auto &a = one.stages[i], &b = first.stages[i];
      const auto place = " of stage " + std::to_string(i);
      if (!(a.layers == b.layers)) return differs(l, "other layers" + place);
      if (!(a.degrees == b.degrees)) return differs(l, "other degrees" + place);
      if (!(a.shares == b.shares)) return differs(l, "other shares" + place);
      if (a.recompute != b.recompute) return differs(l, "another recomputation" + place);
      if (a.zero != b.zero && matters(stage_trait::zero, {.degrees = a.degrees})) return differs(l, "another ZeRO stage" + place);
      same_order = same_order && a.warmup == b.warmup;
    }
    if (!same_order && !order) order = differs(l, "another order", true);
  }
  return order;
}

HETSCHED_INLINE bool can_run(const plan& p, const plan_target& t) { return detail::all_run_anyway(gaps(p, t)); }

HETSCHED_INLINE bool can_run(const plan& p, const plan_target& t, const cluster& hardware) {
  return detail::all_run_anyway(gaps(p, t, hardware));
}

HETSCHED_INLINE bool joined_by_nccl(const cluster& hardware, int a, int b) {
  for (const int s : {a, b})
    if (s < 0 || as_size(s) >= hardware.subclusters.size())
      throw input_error("subcluster " + std::to_string(s) + ": the cluster has " + std::to_string(hardware.subclusters.size()));
  const auto &first = at(hardware.subclusters, a).device, &second = at(hardware.subclusters, b).device;
  if (!detail::known_to_nccl(first) || !detail::known_to_nccl(second)) return false;
  if (a == b) return at(hardware.subclusters, a).inter_node_path.nccl;
  if (!maker_of(first).empty() && !maker_of(second).empty() && maker_of(first) != maker_of(second)) return false;
  return std::none_of(hardware.links.begin(), hardware.links.end(),
                      [&](const cross_link& l) { return !l.path.nccl && ((l.a == a && l.b == b) || (l.a == b && l.b == a)); });
}

HETSCHED_INLINE std::string space_of(const plan_target& t) {
  std::vector<std::string> rules;
  if (!t.several_pipelines) rules.emplace_back(t.equal_pipelines ? "one pipeline, or copies of one" : "one pipeline");
  if (t.cuts == target_cuts::blocks) rules.emplace_back("whole blocks");
  if (t.cuts == target_cuts::blocks_with_ends) rules.emplace_back("whole blocks, with embedding and head");
  if (!t.uneven_shares) rules.emplace_back("equal shares");
  std::vector<std::string> equal;
  for (const auto trait : t.equal) equal.emplace_back(name_of(trait));
  if (!equal.empty()) rules.push_back("all stages alike in " + detail::joined(equal));
  for (const auto& [name, most] : {std::pair{"data", t.most.data}, std::pair{"context", t.most.context},
                                   std::pair{"tensor", t.most.tensor}, std::pair{"expert", t.most.expert}})
    if (most < INT_MAX) rules.push_back(name + (" degrees up to " + std::to_string(most)));
  if (t.least_replicas > 1)
    rules.push_back("on several devices each stage with " + std::to_string(t.least_replicas) + " replicas or more");
  if (t.recompute.size() < 3) rules.push_back("recompute " + detail::joined(detail::names_of(t.recompute), " or "));
  if (!t.recompute_parted) rules.emplace_back("no recomputation where schedules part backwards");
  if (t.zero.size() < 4) rules.push_back("ZeRO stage " + detail::joined(detail::texts_of(t.zero), " or "));
  if (!t.zero_alone.empty())
    rules.push_back("in plans of one stage also " + detail::joined(detail::texts_of(t.zero_alone), " or "));
  if (!t.schedules.empty()) rules.push_back("under " + detail::joined(detail::names_of(t.schedules), " or "));
  if (t.precisions.size() < as_size(precision_count))
    rules.push_back("in " + detail::joined(detail::names_of(t.precisions), " or "));
  if (t.one_precision) rules.push_back("all devices in one precision");
  if (!t.fp16_experts) rules.push_back("no expert degrees in fp16");
  if (t.joined_by_nccl) rules.push_back("devices that NCCL joins");
  if (t.hosts_in_a_row) rules.push_back("each host's ranks in a row");
  if (!t.further_tokens) rules.emplace_back("a head that predicts the next token alone");
  std::string text;
  for (const auto& rule : rules) text += (text.empty() ? "" : "; ") + rule;
  return text;
}

}  // namespace hetsched
