// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/torch/torch_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/types.h>

#include <hetsched/core/detail/state_rows.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/state_slice.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/device/steady_time.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/runtime/trainer/move_state.hpp>

namespace hetsched {

struct torch_file_options {
  /// Of the names of a layer in the whole model; as it is, those of the layers in a torch.nn.Sequential.
  std::function<std::string(int layer)> prefix = [](int layer) { return std::to_string(layer) + "."; };
  int writer = 0;           ///< the rank that writes; it holds the whole state meanwhile
  double deadline_s = 600;  ///< of what ranks tell each other and of the state's way to the writer
};

namespace detail {

using torch_dict = c10::impl::GenericDict;

[[nodiscard]] inline torch_dict make_torch_dict() { return torch_dict(c10::StringType::get(), c10::AnyType::get()); }

/// What the modules of all layers call the tensors of a training's state: "parameter.0" or "buffer.0" of a layer.
class torch_names {
 public:
  /// All ranks call it. Throws: error if they do not all answer.
  template <class Trainer, class Communicator>
  torch_names(Trainer& trainer, Communicator& comm, double deadline_s) {
    std::ostringstream mine;
    for (const auto& [number, layer] : trainer.layers()) {
      for (const auto& [name, n] : layer->parameter_names()) mine << number << " parameter." << n << ' ' << name << '\n';
      for (const auto& [name, n] : layer->buffer_names()) mine << number << " buffer." << n << ' ' << name << '\n';
    }
    const auto text = mine.str();
    std::vector<std::vector<double>> all;
    if (comm.gather(std::vector<double>(text.begin(), text.end()), all, deadline_in(deadline_s)) != wait_result::progress)
      throw error("rank " + std::to_string(comm.rank()) +
                  " does not learn of the others' modules: " + std::string(comm.failure()));
    for (const auto& theirs : all) {
      std::string lines;
      for (const double letter : theirs) lines.push_back(static_cast<char>(letter));
      std::istringstream in(lines);
      int layer = 0;
      for (std::string tensor, name; in >> layer >> tensor && std::getline(in, name);) {
        auto& names = names_[{layer, tensor}];
        if (std::find(names.begin(), names.end(), name.substr(1)) == names.end()) names.push_back(name.substr(1));
      }
    }
  }
  /// Throws: input_error for a tensor that no module has.
  [[nodiscard]] const std::vector<std::string>& of(int layer, const std::string& tensor) const {
    const auto found = names_.find({layer, tensor});
    if (found == names_.end()) throw input_error(tensor_text(layer, tensor) + " has no name: its layer is no module of torch");
    return found->second;
  }

 private:
  std::map<std::pair<int, std::string>, std::vector<std::string>> names_;
};

/// "torch_adamw.exp_avg.3" is the state exp_avg of parameter.3; "parameter.3" and "buffer.3" are themselves.
struct torch_key {
  std::string tensor, state;
};
[[nodiscard]] inline torch_key torch_key_of(const std::string& name) {
  const auto last = name.rfind('.');
  const auto kind = name.substr(0, last), number = name.substr(last);
  if (kind == "parameter" || kind == "buffer") return {name, ""};
  return {"parameter" + number, kind == "updates" ? "step" : kind.substr(kind.find('.') + 1)};
}

/// Writes what torch.load reads, also with weights_only=True: torch::pickle_save writes types beside dictionaries, which it then
/// refuses.
inline void write_torch_archive(const std::string& path, const c10::IValue& value) {
  std::string text;
  torch::jit::Pickler pickler([&](const char* bytes, std::size_t count) { text.append(bytes, count); }, nullptr, nullptr, nullptr,
                              nullptr, false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  caffe2::serialize::PyTorchStreamWriter writer(path);
  writer.writeRecord("data.pkl", text.data(), text.size());
  std::size_t number = 0;
  for (const auto& t : pickler.tensorData()) {
    const auto all = t.contiguous();
    writer.writeRecord("data/" + std::to_string(number++), all.storage().data(), all.storage().nbytes());
  }
  writer.writeEndOfFile();
}

/// Throws: input_error for what LibTorch cannot read.
[[nodiscard]] inline torch_dict read_torch_archive(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw input_error(path + ": cannot be opened");
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
  try {
    return torch::jit::pickle_load(bytes).toGenericDict();
  } catch (const std::exception& e) {
    const std::string_view why = e.what();
    throw input_error(path + ": LibTorch cannot read it (" + std::string(why.substr(0, why.find('\n'))) +
                      "); a state_dict() of Python is to be saved as a dictionary: torch.save(dict(module.state_dict()), path)");
  }
}

/// The elements of a slice, of the whole tensor.
inline void fill_from(const state_slice& s, const at::Tensor& whole) {
  const auto size = element_size(s);
  const auto rows = rows_held(s, size);
  const auto* const from = static_cast<const std::byte*>(whole.const_data_ptr());
  for (std::size_t r = 0; r < rows.of.rows; ++r)
    std::memcpy(s.bytes.data() + r * rows.held * size, from + rows.of.begin(r) * size, rows.of.length * size);
}

}  // namespace detail

/// Writes the state of a training of torch_layers into one file, which Python reads by torch.load(path): a dictionary of
///   "model"      the tensors of all layers by their modules' names behind the layers' prefixes, for load_state_dict
///   "optimizer"  by the parameters' names the optimizer's tensors, as its state has in Python: "exp_avg", ..., and "step"
///   "step"       how many steps there were
/// All ranks call it between the same steps. Tied layers' tensors go by the first of them; what a module has of other elements,
/// or elsewhere, is not the trainer's, and not in the file (num_batches_tracked, quantised weights). The file is there whole or
/// not at all. Throws: as move_state; what torch does where it cannot write. Example:
///   save_torch(trainer, comm, "model.pt");
template <class Trainer, class Communicator>
void save_torch(Trainer& trainer, Communicator& comm, const std::string& path, const torch_file_options& options = {}) {
  const detail::torch_names names(trainer, comm, options.deadline_s);
  const bool writes = comm.rank() == options.writer;
  using value = std::remove_cvref_t<decltype(trainer.layers().front().second->parameters().front())>;
  constexpr auto element = c10::CppTypeToScalarType<typename tensor_traits<value>::element>::value;
  std::map<std::pair<int, std::string>, std::size_t> known;
  std::vector<state_slice> wanted;
  std::vector<at::Tensor> tensors;
  for (const auto& s : trainer.state()) {
    if (!known.emplace(std::pair(s.layer, s.name), wanted.size()).second) continue;
    wanted.push_back({.layer = s.layer, .name = s.name, .element = s.element, .shape = s.shape, .bytes = {}});
    if (!writes) continue;
    std::vector<std::int64_t> shape;
    for (const auto extent : s.shape) shape.push_back(static_cast<std::int64_t>(extent));
    auto& t = tensors.emplace_back(at::empty(shape, s.element == "i64" ? c10::ScalarType::Long : element));
    wanted.back().bytes = {static_cast<std::byte*>(t.mutable_data_ptr()), detail::element_bytes(s.element) * as_size(t.numel())};
  }
  move_state(comm, std::span<const state_slice>(trainer.state(true)), std::span(wanted), options.deadline_s);
  if (!writes) return;
  auto model = detail::make_torch_dict(), optimizer = detail::make_torch_dict(), all = detail::make_torch_dict();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto key = detail::torch_key_of(wanted[i].name);
    for (const auto& name : names.of(wanted[i].layer, key.tensor)) {
      const auto full = options.prefix(wanted[i].layer) + name;
      if (key.state.empty()) {
        model.insert(full, tensors[i]);
      } else {
        if (!optimizer.contains(full)) optimizer.insert(full, detail::make_torch_dict());
        // Python's optimizers count in a scalar of floats.
        optimizer.at(full).toGenericDict().insert(
            key.state, key.state == "step" ? tensors[i].to(c10::ScalarType::Float).reshape(at::IntArrayRef{}) : tensors[i]);
      }
    }
  }
  all.insert("model", model);
  all.insert("optimizer", optimizer);
  all.insert("step", trainer.committed_step());
  detail::write_torch_archive(path + ".writing", all);
  if (std::rename((path + ".writing").c_str(), path.c_str()) != 0) throw error(path + ": cannot be written");
}

/// Fills a training of torch_layers with what save_torch has written, or Python: torch.save of such a dictionary, or of the
/// model's alone, dict(model.state_dict()); then the optimizer's state stays as it is. All ranks call it between the same steps,
/// and read the file. Elements of other types are converted. Throws: input_error for a file that LibTorch does not read, one
/// that lacks a tensor, and one that has it in another shape; slices may then be filled in part.
template <class Trainer, class Communicator>
void load_torch(Trainer& trainer, Communicator& comm, const std::string& path, const torch_file_options& options = {}) {
  const detail::torch_names names(trainer, comm, options.deadline_s);
  const auto all = detail::read_torch_archive(path);
  const auto part = [&](const char* name) -> std::optional<detail::torch_dict> {
    if (!all.contains(name) || !all.at(name).isGenericDict()) return {};
    return all.at(name).toGenericDict();
  };
  const auto model = part("model").value_or(all);
  const auto optimizer = part("optimizer");
  for (const auto& s : trainer.state()) {
    const auto key = detail::torch_key_of(s.name);
    if (s.bytes.empty() || (!key.state.empty() && !optimizer)) continue;
    const auto full = options.prefix(s.layer) + names.of(s.layer, key.tensor).front();
    const auto fault = [&](const std::string& text) {
      return input_error(path + ": " + full + (key.state.empty() ? "" : ", " + key.state) + ": " + text);
    };
    auto from = model;
    if (!key.state.empty()) {
      if (!optimizer->contains(full)) throw fault("missing");
      from = optimizer->at(full).toGenericDict();
    }
    const auto name = key.state.empty() ? full : key.state;
    if (!from.contains(name)) throw fault("missing");
    const auto found = from.at(name);
    auto t = found.isTensor() ? found.toTensor() : at::scalar_tensor(found.toScalar());
    if (key.state == "step") t = t.reshape({1});
    if (!detail::same_extents(t.sizes(), s.shape)) {
      std::ostringstream text;
      text << "found the shape " << t.sizes() << ", expected "
           << at::IntArrayRef(std::vector<std::int64_t>(s.shape.begin(), s.shape.end()));
      throw fault(text.str());
    }
    using value = std::remove_cvref_t<decltype(trainer.layers().front().second->parameters().front())>;
    constexpr auto element = c10::CppTypeToScalarType<typename tensor_traits<value>::element>::value;
    detail::fill_from(s, t.detach().to(s.element == "i64" ? c10::ScalarType::Long : element).contiguous());
  }
  trainer.state_loaded();
  if (all.contains("step") && all.at("step").isInt()) trainer.set_committed_step(all.at("step").toInt());
}

}  // namespace hetsched
