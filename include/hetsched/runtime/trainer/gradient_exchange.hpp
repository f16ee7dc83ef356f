// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/group/axis_group.hpp>
#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/runtime/trainer/detail/exchange_parts.hpp>
#include <hetsched/runtime/trainer/detail/exchange_plan.hpp>
#include <hetsched/runtime/trainer/detail/tensor_runs.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>

namespace hetsched {

struct exchange_options {
  std::size_t bucket_bytes = std::size_t{4} << 20;  ///< most that is summed and sent at once
  std::size_t part_bytes = std::size_t{16} << 10;   ///< least that a rank sums of a bucket, if it is not smaller
  bool frees_buffers = false;                       ///< buffers of messages are there during an exchange only
  std::vector<double> room = {};                    ///< as exchange_cut's
  std::vector<int> waves = {};                      ///< layers with which stages begin, if a rank has several
  std::size_t joint_bytes = 0;  ///< most that is summed by a collective where the communicator has some; 0: none is
};

/// A parameter of a stage of this rank.
template <class Tensor>
struct local_parameter {
  Tensor* value = nullptr;  ///< may be null unless the parameter is sharded
  Tensor* gradient = nullptr;
  std::size_t stage = 0;  ///< of this rank's
};

/// Elements of a parameter whose sum stays with this rank: [first, last) of a chunk, in tensors of the shape {1, last - first}.
template <class Tensor>
struct owned_piece {
  std::size_t parameter = 0;  ///< of the model
  std::size_t chunk = 0;      ///< of the parameter
  std::int64_t first = 0, last = 0;
  Tensor value, gradient;
};

/// Elements of a chunk of a gathered parameter that a rank owns.
struct gathered_range {
  int rank = 0;
  std::size_t parameter = 0;  ///< of the model
  std::size_t chunk = 0;      ///< of the parameter
  interval elements{};
};

/// Adds up the gradients of parameters that several ranks, directions or tied layers hold; afterwards all holders have the sum.
/// Chunks of which the same ranks have terms travel together in buckets, cut into a part per rank: each rank adds up its parts,
/// and sends the sums to the others. Between pipelines only sums of pipelines travel. Two holders send each other their terms
/// instead, and both add. Sums of sharded parameters stay with the owners of their parts, who send new values instead.
/// One channel per pair of ranks and direction takes all of them, in an order that is the same on all
/// ranks; its edge's stage is 0. Buffers are made once, unless they are to be freed: sum() then allocates nothing.
/// On a device all of it is enqueued, and the host waits for nothing but transports of the host, which take what they send from
/// host memory and put there what they receive.
/// Over an ordered_plane that joins() ranks, what they all hold may be summed by its collectives instead, in fewer and larger
/// buckets, and sharded parameters reduced to equal parts and gathered from them, which is half of an all-reduce each: each rank
/// adds its terms, and packs them on a queue of its own, behind the stages that made them but beside those that are still at
/// work. Determinism: but for collectives, whose order of addition is their own, in each pipeline terms are added by layer and
/// number, direction, data rank, context rank and, where gradients are partial, tensor rank; then pipelines in their order. So
/// the sum has the same bits for any cut of parameters and buckets.
template <class Tensor, class Communicator, class Queue = host_queue>
class gradient_exchange {
  static_assert(data_plane<Communicator, Tensor>);
  using operation = typename Communicator::operation;
  using traits = tensor_traits<Tensor>;
  using runs = detail::tensor_runs<Tensor>;
  static constexpr bool adds_whole = detail::adds_whole<Tensor, Queue>;
  static constexpr bool ordered = ordered_plane<Communicator>;
  static constexpr bool may_join =
      ordered && calling_plane<Communicator> && requires(const Communicator& c, const std::vector<int>& ranks) {
    c.joins(ranks);
  };
  using axis = typename detail::axis_of<Tensor, Communicator>::type;

 public:
  /// `parameters`: the same on every rank. `local`: (const parameter_holder&) -> local_parameter, this rank's as one of the
  /// holder's. Its tensors stay where they are. `queue`: of what is done to them; `host`: makes tensors in host memory; `side`:
  /// for sums by collectives, which others go on beside.
  /// Over an ordered_plane, which this one has for itself, all ranks make one at the same time.
  /// Complexity: O(chunks * ranks + buckets * ranks^2).
  template <class Local>
  gradient_exchange(std::span<const model_parameter> parameters, Local&& local, Communicator comm, exchange_options options = {},
                    Queue queue = Queue(), Queue host = Queue(), std::optional<Queue> side = {})
      : queue_(std::move(queue)),
        host_(std::move(host)),
        side_(side ? *side : queue_),
        comm_(std::move(comm)),
        frees_buffers_(options.frees_buffers) {
    const auto elements_of = [](std::size_t bytes) {
      return static_cast<std::int64_t>(std::max<std::size_t>(bytes / sizeof(typename traits::element), 1));
    };
    detail::exchange_cut cut{.most_elements = elements_of(options.bucket_bytes),
                             .least_elements = elements_of(options.part_bytes),
                             .room = std::move(options.room),
                             .waves = std::move(options.waves)};
    if constexpr (may_join) {
      cut.joint_elements = options.joint_bytes == 0 ? 0 : elements_of(options.joint_bytes);
      cut.joins = [this](const std::vector<int>& ranks) { return comm_.joins(ranks); };
    }
    auto plan = detail::plan_exchange(parameters, comm_.ranks(), comm_.rank(), cut);
    messages_.resize(plan.messages.size());
    operations_ = std::make_unique<operation[]>(plan.messages.size());
    late_from_ = plan.late_from;
    for (const auto& p : plan.parts) {
      if (p.joint.empty()) continue;
      auto& how = joint_use_[p.joint];
      how.name = "ranks that sum gradients";
      how.most_bytes = std::max(how.most_bytes, as_size(p.elements) * sizeof(typename traits::element));
      how.scatters = how.scatters || p.sharded;
    }
    for (auto& p : plan.parts) add_part(std::move(p), parameters, local);
    for (std::size_t i = 0; i < plan.messages.size(); ++i) set_message(messages_[i], plan.messages[i], parameters);
    for (std::size_t i = 0; i < messages_.size(); ++i) messages_[i].done = &operations_[i];
    for (auto& o : owned_) {
      o.at.front().tensor = &o.piece.gradient;
      if (parts_[o.part].plan.stays) detail::pack<Tensor>(o.piece.value, o.values, queue_);
    }
    list_gathered(parameters, cut);
    gathers_ =
        std::any_of(parameters.begin(), parameters.end(), [](const model_parameter& m) { return m.sharded && !m.gathered; });
    if constexpr (ordered) comm_.set_plan(order_of(plan));
    if (!frees_buffers_) make_rooms();  // of memory that the first use has had
  }

  /// Optional: posts what a step begins with, so that begin() can be called; else sum() does.
  void begin_step(std::int64_t step) {
    step_ = step;
    begun_step_ = true;
    late_ = any_begun_ = false;
    std::fill(begun_.begin(), begun_.end(), char{0});
    for (auto& p : parts_) {
      p.added = p.finished = false;
      p.total = nullptr;
    }
    has_joined_ = false;
    whole_.clear();
    for (auto& m : messages_) m.filled = m.posted = m.has_landed = false;
    for (auto& c : channels_) c.next = 0;
    first_open_ = 0;
    if (!frees_buffers_ && !ordered) post_receives(0, late_from_);
  }

  /// The gradients of a stage of this rank are whole: they begin to travel. Optional; sum() does so for those that are left, and
  /// over an ordered_plane for all, behind the transfers of pipelines.
  void begin(std::size_t stage) {
    if constexpr (may_join)
      if (stage < begun_.size()) whole_.insert_or_assign(stage, queue_.record());
    if (ordered) return;
    begin_any();
    if (stage < begun_.size()) begun_[stage] = 1;
    fill_terms();
    (void)progress();
  }

  /// All gradients of this rank are on their way to be whole, and all that its pipeline transfers has been issued: sums by
  /// collectives begin. Optional, as begin().
  void begin_joint() {
    if constexpr (may_join) {
      if (joint_.empty() || std::exchange(has_joined_, true)) return;
      if (frees_buffers_) make_rooms();
      for (const auto& [number, with] : joint_) {
        auto& p = parts_[number];
        auto& room = rooms_.at(p.plan.elements);
        if (frees_buffers_) make_sums(p);
        for (const auto stage : p.stages) {
          const auto moment = whole_.find(stage);
          side_.wait(moment == whole_.end() ? queue_.record() : moment->second);
        }
        if (p.plan.adds.empty())
          detail::zero(room, side_);
        else
          add_terms(room, p, p.plan.adds.front().front().terms, side_);
        if (p.plan.sharded) {
          auto& kept = rooms_.at(elements_kept(p));
          axes_[with].reduce_scatter(room, kept, side_);
          for (auto k = p.first_owned; k < p.last_owned; ++k) detail::unpack<Tensor>(kept, owned_[k].at, side_);
        } else {
          axes_[with].all_reduce(room, side_);
          detail::unpack<Tensor>(room, p.targets, side_);
        }
        p.finished = true;
      }
      queue_.wait(side_.record());
      comm_.end_calls();
    }
  }

  /// Adds and sends on what has come, if a stage has begun. Returns whether there was anything; to be called between begin_step()
  /// and sum() as often as one likes.
  bool progress() {
    if (!any_begun_) return false;
    bool moved = flush();
    for (std::size_t i = first_open_; i < parts_.size(); ++i) moved = advance(parts_[i]) || moved;
    while (first_open_ < parts_.size() && parts_[first_open_].finished) ++first_open_;
    return moved;
  }

  /// Whether a message waits for the device before it can be sent: a wait does not hear of that.
  [[nodiscard]] bool waits_for_device() const {
    return by_host_ && std::any_of(channels_.begin(), channels_.end(), [&](const detail::outgoing_channel& c) {
             return c.next < c.messages.size() && messages_[c.messages[c.next]].filled;
           });
  }

  /// Makes one exchange, or ends that of this step; all ranks call it, for the same step. Sums of sharded parameters are then in
  /// their owned() gradients only.
  /// Throws: communication_error if others are late or have given up; gradients are then of no use. It does not abort: that
  /// is the caller's.
  void sum(std::int64_t step, deadline_time until) {
    if (!begun_step_ || step != step_) begin_step(step);
    begun_step_ = false;
    begin_joint();
    begin_any();
    std::fill(begun_.begin(), begun_.end(), char{1});
    fill_terms();
    finish(until);
    for (auto& o : owned_) {
      if (parts_[o.part].plan.joint.empty()) detail::unpack<Tensor>(*parts_[o.part].total, o.at, queue_);
      if (!parts_[o.part].plan.stays) detail::pack<Tensor>(o.piece.value, o.values, queue_);
    }
    release();
  }

  /// Of gathered parameters that this rank holds what each rank owns, in the order of ranks; where that is this one, values of
  /// owned() are the parameters' from the constructor on, which takes them there, and spread() takes them to nobody.
  [[nodiscard]] std::span<const gathered_range> gathered() const { return gathered_; }

  /// Of sharded parameters what this rank owns. After sum() its values are the parameters', too.
  [[nodiscard]] std::size_t owned_count() const { return owned_.size(); }
  [[nodiscard]] owned_piece<Tensor>& owned(std::size_t i) { return owned_[i].piece; }

  /// Takes owned() values into the parameters of all that hold them; all ranks call it after sum(), or none. Parameters of this
  /// rank change once all of them have come.
  /// Throws: as sum().
  void spread(deadline_time until) {
    if (!gathers_) return;
    late_ = true;
    gather_joint();
    for (auto& p : parts_) p.finished = !p.plan.sharded || p.plan.stays || !p.plan.joint.empty();
    for (auto& o : owned_) {
      auto& p = parts_[o.part];
      if (p.plan.stays || !p.plan.joint.empty()) continue;
      if (frees_buffers_ && std::exchange(p.total, &p.sum) != &p.sum) {
        p.sum = make_buffer(p.plan.elements);
        ++p.made;
      }
      o.at.front().tensor = &o.piece.value;
      detail::pack<Tensor>(*parts_[o.part].total, o.at, queue_);
      o.at.front().tensor = &o.piece.gradient;
    }
    first_open_ = 0;
    post_receives(late_from_, messages_.size());
    finish(until);
    for (auto& p : parts_)
      if (p.plan.sharded && !p.plan.stays && p.plan.joint.empty()) detail::unpack<Tensor>(*p.total, p.targets, queue_);
    release();
  }

  /// Bytes of its buffers, and of the owned() tensors, that are there now.
  [[nodiscard]] std::size_t bytes() const {
    std::int64_t count = 0;
    for (const auto& m : messages_) count += m.made ? (m.by_host && m.incoming ? 2 : 1) * parts_[m.part].plan.elements : 0;
    for (const auto& p : parts_) count += p.made * p.plan.elements;
    for (const auto& o : owned_) count += 2 * (o.piece.last - o.piece.first);
    for (const auto& [elements, room] : rooms_) count += elements;
    return as_size(count) * sizeof(typename traits::element);
  }

 private:
  using message = detail::exchange_message<Tensor, operation, typename Queue::moment>;
  using part = detail::exchange_part<Tensor>;
  struct owned_part {
    owned_piece<Tensor> piece;
    std::size_t part = 0;
    std::vector<runs> at;      ///< the piece's tensor within its part
    std::vector<runs> values;  ///< the parameter within the piece's
  };

  void make_rooms() {
    const auto make = [&](std::int64_t elements) {
      if (const auto [room, is_new] = rooms_.try_emplace(elements); is_new) {
        room->second = make_buffer(elements);
        detail::zero(room->second, queue_);  // parts of one size may be more than there is
      }
    };
    for (const auto& [number, with] : joint_) {
      make(parts_[number].plan.elements);
      if (parts_[number].plan.sharded) make(elements_kept(parts_[number]));
      if (frees_buffers_) continue;
      keep(with, parts_[number].plan.elements);
      if (parts_[number].plan.sharded) keep(with, elements_kept(parts_[number]));
    }
  }
  /// Once for each axis that uses a room.
  void keep(std::size_t with, std::int64_t elements) {
    if constexpr (requires(axis & a, Tensor & t) { a.keep(t); })
      if (const auto [kept, is_new] = kept_.try_emplace({with, elements}); is_new)
        kept->second = axes_[with].keep(rooms_.at(elements));
  }
  /// Of a sharded part that is summed by a collective, each rank's.
  [[nodiscard]] static std::int64_t elements_kept(const part& p) {
    return p.plan.elements / static_cast<std::int64_t>(p.plan.joint.size());
  }
  /// New values of what is summed by collectives, from their owners.
  void gather_joint() {
    if constexpr (may_join) {
      if (joint_.empty()) return;
      if (frees_buffers_) make_rooms();
      for (const auto& [number, with] : joint_) {
        auto& p = parts_[number];
        if (!p.plan.sharded || p.plan.stays) continue;
        auto& room = rooms_.at(p.plan.elements);
        auto& kept = rooms_.at(elements_kept(p));
        for (auto k = p.first_owned; k < p.last_owned; ++k) {
          auto& o = owned_[k];
          o.at.front().tensor = &o.piece.value;
          detail::pack<Tensor>(kept, o.at, queue_);
          o.at.front().tensor = &o.piece.gradient;
        }
        axes_[with].all_gather(kept, room, queue_);
        detail::unpack<Tensor>(room, p.targets, queue_);
      }
      comm_.end_calls();
    }
  }
  /// Others plan as this rank does.
  void list_gathered(std::span<const model_parameter> parameters, const detail::exchange_cut& cut) {
    if (std::none_of(parameters.begin(), parameters.end(), [](const model_parameter& m) { return m.gathered; })) return;
    const auto holds = [](const model_parameter& m, int rank) { return m.gathered && m.holders.front().has(rank); };
    for (int r = 0; r < comm_.ranks(); ++r) {
      if (std::none_of(parameters.begin(), parameters.end(),
                       [&](const model_parameter& m) { return holds(m, r) && holds(m, comm_.rank()); }))
        continue;
      const auto theirs = detail::plan_exchange(parameters, comm_.ranks(), r, cut);
      for (const auto& planned : theirs.parts)
        for (const auto& piece : planned.pieces)
          if (const auto kept = detail::kept_of(planned, piece);
              planned.owned && planned.stays && kept.first < kept.last && holds(parameters[piece.parameter], comm_.rank()))
            gathered_.push_back({r, piece.parameter, piece.chunk, kept});
    }
  }
  [[nodiscard]] Tensor make_buffer(std::int64_t elements, bool in_host = false) const {
    return detail::make_tensor<Tensor>({1, as_size(elements)}, in_host ? host_ : queue_);
  }
  /// Whether what is posted on a channel has to be in host memory, and is not there.
  [[nodiscard]] bool goes_by_host([[maybe_unused]] int channel) const {
    if constexpr (traits::space != memory_space::device)
      return false;
    else if constexpr (requires { comm_.takes_bytes(channel); })
      return comm_.takes_bytes(channel);
    else
      return byte_plane<Communicator>;
  }
  /// Behind an exchange: what transports of the host may write to again is not read any more.
  void release() {
    if (by_host_) queue_.finish();
    if (frees_buffers_) free_buffers();
  }

  /// Where buffers are freed, receives are posted no earlier than the first stage's gradients are whole.
  void begin_any() {
    if (std::exchange(any_begun_, true)) return;
    if (frees_buffers_)
      for (auto& p : parts_)
        if (p.plan.joint.empty()) make_sums(p);
    if (frees_buffers_ || ordered) post_receives(0, late_from_);
  }
  void free_buffers() {
    for (auto& m : messages_) {
      m.buffer = Tensor{};
      m.landed = Tensor{};
      m.made = false;
    }
    for (auto& p : parts_) {
      for (auto* const t : {&p.sum, &p.other, &p.spare}) *t = Tensor{};
      p.total = nullptr;
      p.made = 0;
    }
    rooms_.clear();
  }
  void make_sums(part& p) {
    const auto make = [&](Tensor& t) {
      t = make_buffer(p.plan.elements);
      ++p.made;
    };
    if (p.needs_sum) make(p.sum);
    if (p.needs_other) make(p.other);
    if constexpr (adds_whole)
      if (p.plan.joint.empty() || p.terms.size() > 1) make(p.spare);
  }
  /// A message's buffer, made if it is not there.
  Tensor& buffer_of(message& m) {
    if (!std::exchange(m.made, true)) {
      m.buffer = make_buffer(parts_[m.part].plan.elements, m.by_host);
      if (m.by_host && m.incoming) m.landed = make_buffer(parts_[m.part].plan.elements);
    }
    return m.buffer;
  }
  /// What a message has brought, where it can be added to. Requires: it has arrived.
  Tensor& brought_by(message& m) {
    if (!m.by_host) return m.buffer;
    if (!std::exchange(m.has_landed, true)) detail::assign(m.landed, m.buffer, queue_);
    return m.landed;
  }
  Tensor& brought_by(int number) { return brought_by(at(messages_, number)); }

  /// Where elements of a chunk lie in a rank's tensor; none if it does not hold the chunk.
  [[nodiscard]] static std::vector<strided_runs> places(const model_parameter& m, const parameter_holder& h, int rank,
                                                        const slice& chunk, std::int64_t first, std::int64_t last) {
    for (const auto& held : held_pieces(h, m.shape, rank))
      if (contains(held.part, chunk)) return runs_of(held.array, chunk, chunk, first, last);
    return {};
  }

  template <class Local>
  void add_part(detail::planned_part plan, std::span<const model_parameter> parameters, Local& local) {
    auto& p = parts_.emplace_back();
    std::vector<int> number;  // of terms that are here, by the chunk's
    std::size_t holders = 0;
    p.first_owned = owned_.size();
    for (const auto& piece : plan.pieces) holders = add_piece(p, plan, piece, parameters[piece.parameter], number, local);
    p.last_owned = owned_.size();
    numbers_.push_back(number);
    std::size_t count = 0, here = 0, lists = 0;
    bool early = false, joins = false;
    for (auto& list : plan.adds) {
      if (list.empty()) continue;
      for (std::size_t i = 0; i < list.size(); ++i) {
        for (auto& t : list[i].terms) t = as_size(number[t]);
        ++count;
        here += list[i].terms.size();
        early = early || (lists == 0 && i < 2 && !list[i].terms.empty());
      }
      joins = joins || (lists++ > 0 && (list.size() > 1 || list.front().terms.size() > 1));
    }
    // a + b is b + a: what is added first or second may be where the sum begins.
    p.in_place = here == 1 && early && holders == 1 && !(plan.owned && plan.sharded) && (!adds_whole || count == 2);
    p.needs_sum = count > 0 && !p.in_place;
    p.needs_other = joins && !p.in_place;
    p.plan = std::move(plan);
    if (!p.plan.joint.empty()) {
      p.in_place = p.needs_sum = p.needs_other = false;
      joint_.emplace_back(parts_.size() - 1, axis_of(p.plan.joint));
    }
    if (!frees_buffers_) make_sums(p);
  }

  // A piece of the last part, in all tensors of this rank that have it; `number`: see add_part. Returns how many there are.
  template <class Local>
  std::size_t add_piece(part& p, const detail::planned_part& plan, const detail::part_piece& piece, const model_parameter& m,
                        std::vector<int>& number, Local& local) {
    const auto& chunk = m.chunks[piece.chunk];
    number.resize(chunk.terms.size(), -1);
    std::size_t holders = 0;
    for (std::size_t h = 0; h < m.holders.size(); ++h) {
      if (!m.holders[h].has(comm_.rank())) continue;
      auto at = places(m, m.holders[h], comm_.rank(), chunk.part, piece.first, piece.last);
      if (at.empty()) continue;
      const local_parameter<Tensor> own = local(m.holders[h]);
      if (std::find(p.stages.begin(), p.stages.end(), own.stage) == p.stages.end()) p.stages.push_back(own.stage);
      if (own.stage >= begun_.size()) begun_.insert(begun_.end(), own.stage + 1 - begun_.size(), char{0});
      if (plan.owned && plan.sharded && holders == 0) add_owned(plan, piece, m, m.holders[h], own);
      ++holders;
      for (auto& r : at) r.first_b += piece.offset - piece.first;
      for (const auto& r : at) p.targets.push_back({plan.sharded ? own.value : own.gradient, r});
      for (std::size_t i = 0; i < chunk.terms.size(); ++i) {
        if (chunk.terms[i].device != comm_.rank() || chunk.terms[i].holder != static_cast<int>(h)) continue;
        if (number[i] < 0) {
          number[i] = static_cast<int>(p.terms.size());
          p.terms.emplace_back();
        }
        auto& t = p.terms[as_size(number[i])];
        if (std::find(t.stages.begin(), t.stages.end(), own.stage) == t.stages.end()) t.stages.push_back(own.stage);
        for (const auto& r : at) t.at.push_back({own.gradient, r});
      }
    }
    return holders;
  }

  // What this rank keeps of a piece of the last part, if anything.
  void add_owned(const detail::planned_part& plan, const detail::part_piece& piece, const model_parameter& m,
                 const parameter_holder& holder, const local_parameter<Tensor>& own) {
    const auto [first, last] = detail::kept_of(plan, piece);
    if (!(first < last)) return;
    auto& o = owned_.emplace_back();
    o.piece = {piece.parameter, piece.chunk, first, last, make_buffer(last - first), make_buffer(last - first)};
    o.part = parts_.size() - 1;
    const auto offset = piece.offset + first - piece.first - plan.kept_first;
    o.at.push_back({nullptr, {.first_a = 0, .first_b = offset, .length = last - first, .rows = 1}});
    for (auto r : places(m, holder, comm_.rank(), m.chunks[piece.chunk].part, first, last)) {
      r.first_b -= first;
      o.values.push_back({own.value, r});
    }
  }

  /// The number of the axis of these ranks.
  std::size_t axis_of(const std::vector<int>& ranks) {
    const auto known = std::find(axis_ranks_.begin(), axis_ranks_.end(), ranks) - axis_ranks_.begin();
    if (as_size(known) == axis_ranks_.size()) {
      axis_ranks_.push_back(ranks);
      if constexpr (may_join) axes_.push_back(detail::open_axis<Tensor>(comm_, ranks, joint_use_.at(ranks)));
    }
    return as_size(known);
  }

  void set_message(message& m, const detail::planned_message& planned, std::span<const model_parameter> parameters) {
    const auto& own = parts_[planned.part];
    const auto& id = parameters[own.plan.pieces.front().parameter].id;
    m.where = {.from = planned.from, .to = planned.to, .what = payload::layer_gradient, .direction = 0, .stage = id.layer};
    m.number = id.number;
    m.incoming = planned.to == comm_.rank();
    m.is_term = planned.step == detail::exchange_step::term;
    m.part = planned.part;
    if (!m.incoming)
      for (const auto t : planned.terms) m.terms.push_back(as_size(numbers_[planned.part][t]));
    edge pair = m.where;
    pair.stage = 0;
    for (const auto& [known, channel] : known_)
      if (known == pair) m.channel = channel;
    if (m.channel < 0) known_.emplace_back(pair, m.channel = comm_.open(pair));
    m.by_host = goes_by_host(m.channel);
    by_host_ = by_host_ || m.by_host;
    if (!frees_buffers_) (void)buffer_of(m);
    if (m.incoming) return;
    auto out = std::find_if(channels_.begin(), channels_.end(), [&](const auto& c) { return c.channel == m.channel; });
    if (out == channels_.end()) out = channels_.insert(out, detail::outgoing_channel{.channel = m.channel, .messages = {}});
    out->messages.push_back(as_size(&m - messages_.data()));
  }

  /// What this rank sends and receives, wave after wave, in each by steps: every pair's transfers have the same place among all.
  [[nodiscard]] communication_plan order_of(const detail::exchange_plan& plan) const {
    communication_plan order(joint_.empty() ? 0 : 1);  // collectives come first, and before what spread() sends
    std::pair<int, detail::exchange_step> last{-1, {}};
    for (std::size_t i = 0; i <= messages_.size(); ++i) {
      if (i == late_from_ && !joint_.empty() && gathers_) order.emplace_back();
      if (i == messages_.size()) break;
      const auto& m = messages_[i];
      if constexpr (detail::partly_ordered<Communicator>)
        if (!comm_.orders(m.channel)) continue;
      const std::pair here{plan.messages[i].wave, plan.messages[i].step};
      if (std::exchange(last, here) != here) order.emplace_back();
      const auto bytes = as_size(parts_[m.part].plan.elements) * sizeof(typename traits::element);
      order.back().push_back({m.channel, !m.incoming, stamp_of(m), bytes});
    }
    return order;
  }

  [[nodiscard]] stamp stamp_of(const message& m) const { return {step_, m.number, m.where.what, 0, m.where.stage}; }
  void post_receives(std::size_t first, std::size_t last) {
    if constexpr (requires { comm_.begin_group(); }) comm_.begin_group();
    for (std::size_t i = first; i < last; ++i) {
      auto& m = messages_[i];
      if (!m.incoming) continue;
      m.posted = true;
      comm_.post_receive(m.channel, stamp_of(m), buffer_of(m), *m.done);
    }
    if constexpr (requires { comm_.end_group(); }) comm_.end_group();
  }
  /// Posts what is filled, in the order of each channel.
  bool flush() {
    bool moved = false;
    for (auto& c : channels_)
      for (; c.next < c.messages.size(); ++c.next) {
        auto& m = messages_[c.messages[c.next]];
        if (!m.filled || (m.by_host && !m.ready.reached())) break;
        m.posted = moved = true;
        comm_.post_send(m.channel, stamp_of(m), m.buffer, *m.done);
      }
    return moved;
  }

  [[nodiscard]] bool has_begun(const part& p, const std::vector<std::size_t>& terms) const {
    for (const auto t : terms)
      for (const auto stage : p.terms[t].stages)
        if (begun_[stage] == 0) return false;
    return true;
  }
  [[nodiscard]] bool arrived(message& m) { return m.posted && comm_.poll(*m.done); }

  /// packed = the sum of terms that are here.
  void add_terms(Tensor& packed, part& p, const std::vector<std::size_t>& terms) { add_terms(packed, p, terms, queue_); }
  void add_terms(Tensor& packed, part& p, const std::vector<std::size_t>& terms, const Queue& q) {
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const std::span<const runs> at(p.terms[terms[i]].at);
      i == 0 ? detail::pack(packed, at, q) : detail::add_packed(packed, at, p.spare, q);
    }
  }
  void fill_terms() {
    for (auto& m : messages_) {
      auto& p = parts_[m.part];
      if (m.incoming || !m.is_term || m.filled || !has_begun(p, m.terms)) continue;
      add_terms(buffer_of(m), p, m.terms);
      set_filled(m);
    }
  }

  /// Does what can be done for a part; whether there was anything.
  bool advance(part& p) {
    if (p.finished) return false;
    bool moved = false;
    if (!late_ && !p.added && !p.plan.adds.empty()) {
      for (const auto& list : p.plan.adds)
        for (const auto& c : list)
          if (c.message >= 0 ? !arrived(at(messages_, c.message)) : !has_begun(p, c.terms)) return false;
      add_up(p);
      p.added = moved = true;
      if (p.plan.share >= 0) fill(p.plan.share, p);
    }
    if (!late_ && p.plan.sharded) {
      p.finished = true;
    } else if (p.plan.owned) {
      p.finished = true;
      if (!late_ && !p.in_place) detail::unpack<Tensor>(*p.total, p.targets, queue_);
      for (const int m : p.plan.spread) fill(m, p);
      moved = true;
    } else if (auto& m = at(messages_, p.plan.sum); arrived(m)) {
      p.total = &brought_by(m);
      p.finished = moved = true;
      if (!late_) detail::unpack<Tensor>(*p.total, p.targets, queue_);
      for (const int to : p.plan.spread) fill(to, p);
    }
    if (moved) (void)flush();
    return moved || p.finished;
  }
  void fill(int number, const part& p) {
    auto& m = at(messages_, number);
    if (p.total)
      detail::assign(buffer_of(m), *p.total, queue_);
    else
      detail::pack<Tensor>(buffer_of(m), p.terms.front().at, queue_);
    set_filled(m);
  }
  void set_filled(message& m) {
    m.filled = true;
    if (m.by_host) m.ready = queue_.record();
  }

  void add_up(part& p) {
    if (p.in_place) {
      const std::span<const runs> sum(p.terms.front().at);
      bool first = true;
      for (const auto& list : p.plan.adds) {
        if (list.empty()) continue;
        if (!std::exchange(first, false) && list.size() > 1) {
          detail::add_unpacked(add_list(p, list, p.other), sum, p.spare, queue_);
          continue;
        }
        for (const auto& c : list)
          if (c.message >= 0) detail::add_unpacked(brought_by(c.message), sum, p.spare, queue_);
      }
      return;
    }
    for (const auto& list : p.plan.adds) {
      if (list.empty()) continue;
      if (!p.total)
        p.total = &add_list(p, list, p.sum);
      else if (list.size() == 1 && list.front().terms.size() <= 1)
        add_one(*p.total, p, list.front());
      else
        detail::add(*p.total, add_list(p, list, p.other), queue_);
    }
  }
  /// The sum of contributions, in room or in place of the first of them.
  Tensor& add_list(part& p, const std::vector<detail::contribution>& list, Tensor& room) {
    Tensor* sum = &room;
    if (list.front().message >= 0)
      sum = &brought_by(list.front().message);
    else
      add_terms(room, p, list.front().terms);
    for (std::size_t i = 1; i < list.size(); ++i) add_one(*sum, p, list[i]);
    return *sum;
  }
  /// Requires: a message, or one term.
  void add_one(Tensor& sum, part& p, const detail::contribution& c) {
    if (c.message >= 0)
      detail::add(sum, brought_by(c.message), queue_);
    else
      detail::add_packed<Tensor>(sum, p.terms[c.terms.front()].at, p.spare, queue_);
  }

  void finish(deadline_time until) {
    while (true) {
      const bool moved = progress();
      const message* const missing = unfinished();
      if (!missing) return;
      if (moved) continue;
      // Devices do not signal that a message is filled; look again.
      constexpr double look_s = 20e-6;
      const bool looks = waits_for_device() && std::chrono::steady_clock::now() < until;
      const auto result = comm_.wait(looks ? std::min(until, deadline_in(look_s)) : until, true);
      if (result == wait_result::deadline && looks) continue;
      if (result != wait_result::progress) give_up(result, *missing);
    }
  }

  /// What is still under way; null: all is done.
  [[nodiscard]] const message* unfinished() {
    for (std::size_t i = first_open_; i < parts_.size(); ++i) {
      auto& p = parts_[i];
      if (p.finished) continue;
      if (!late_ && !p.added)
        for (const auto& list : p.plan.adds)
          for (const auto& c : list)
            if (c.message >= 0 && !arrived(at(messages_, c.message))) return &at(messages_, c.message);
      if (p.plan.sum >= 0) return &at(messages_, p.plan.sum);
      for (const auto& list : p.plan.adds)  // all have come in between: the next round adds them
        for (const auto& c : list)
          if (c.message >= 0) return &at(messages_, c.message);
    }
    for (std::size_t i = late_ ? late_from_ : 0; i < (late_ ? messages_.size() : late_from_); ++i)
      if (!messages_[i].incoming && !arrived(messages_[i])) return &messages_[i];
    return nullptr;
  }

  [[noreturn]] void give_up(wait_result why, const message& missing) {
    why = detail::with_blame(comm_, why);
    const auto text = "rank " + std::to_string(comm_.rank()) + ", step " + std::to_string(step_) + ": the " +
                      to_text(missing.where) + ", parameter " + std::to_string(missing.number) +
                      (missing.incoming ? ", has not come" : ", is not received");
    const action none{.kind = action_kind::reduce_gradients, .stage = missing.where.stage, .microbatch = no_microbatch};
    throw communication_error(
        why == wait_result::aborted ? text + "; ended, as " + std::string(comm_.failure()) : text + " in time", missing.where,
        no_microbatch, none);
  }

  [[no_unique_address]] Queue queue_;
  [[no_unique_address]] Queue host_;
  [[no_unique_address]] Queue side_;
  Communicator comm_;
  bool frees_buffers_ = false;
  bool by_host_ = false;  ///< a message is
  std::vector<std::pair<edge, int>> known_;
  std::vector<detail::outgoing_channel> channels_;
  std::vector<message> messages_;
  std::vector<part> parts_;
  std::vector<owned_part> owned_;
  std::vector<gathered_range> gathered_;
  std::vector<std::vector<int>> numbers_;                   ///< per part: of the chunk's terms those that are here
  std::vector<std::pair<std::size_t, std::size_t>> joint_;  ///< parts that are summed by collectives, and their axes
  std::map<std::vector<int>, axis_options> joint_use_;      ///< by ranks
  std::vector<std::vector<int>> axis_ranks_;
  std::vector<axis> axes_;
  std::map<std::int64_t, Tensor> rooms_;                                              ///< for collectives, by elements
  std::map<std::pair<std::size_t, std::int64_t>, std::shared_ptr<const void>> kept_;  ///< registered, by axis and elements
  bool has_joined_ = false;
  bool gathers_ = false;                                 ///< spread() takes new values of some parameter of the model
  std::map<std::size_t, typename Queue::moment> whole_;  ///< when the gradients of a stage are, in this step
  std::unique_ptr<operation[]> operations_;
  std::size_t late_from_ = 0;   ///< the first message of spread()
  std::size_t first_open_ = 0;  ///< all parts before it are finished
  std::vector<char> begun_;     ///< by stage
  std::int64_t step_ = 0;
  bool begun_step_ = false, any_begun_ = false, late_ = false;
};

}  // namespace hetsched
