// SPDX-License-Identifier: Apache-2.0
#pragma once
// What <hetsched/torch.hpp> uses of LibTorch, declared and no more, so that the headers compile where there is none. What is
// here LibTorch has, too: the lane torch compiles ../headers.cpp against it.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace c10 {

enum class ScalarType : std::int8_t { Char, Long, Half, Float, Double, BFloat16 };
enum class Layout : std::int8_t { Strided, Sparse };
std::ostream& operator<<(std::ostream&, ScalarType);
inline constexpr Layout kStrided = Layout::Strided;

struct BFloat16 {
  BFloat16() = default;
  BFloat16(float);
  operator float() const;
};

template <class T>
struct CppTypeToScalarType;
template <>
struct CppTypeToScalarType<float> {
  static constexpr ScalarType value = ScalarType::Float;
};
template <>
struct CppTypeToScalarType<double> {
  static constexpr ScalarType value = ScalarType::Double;
};
template <>
struct CppTypeToScalarType<std::int64_t> {
  static constexpr ScalarType value = ScalarType::Long;
};
template <>
struct CppTypeToScalarType<BFloat16> {
  static constexpr ScalarType value = ScalarType::BFloat16;
};

struct Device {
  bool is_cpu() const;
};
std::ostream& operator<<(std::ostream&, const Device&);

struct Storage {
  std::size_t use_count() const;
};

class TensorImpl;

template <class T>
struct ArrayRef {
  ArrayRef(const std::vector<T>&);
  ArrayRef(std::initializer_list<T>);
  const T* begin() const;
  const T* end() const;
  std::size_t size() const;
  const T& operator[](std::size_t) const;
};

}  // namespace c10

namespace at {

using c10::BFloat16;
using c10::kStrided;
using c10::ScalarType;
using IntArrayRef = c10::ArrayRef<std::int64_t>;

class Tensor {
 public:
  bool defined() const;
  ScalarType scalar_type() const;
  c10::Device device() const;
  c10::Layout layout() const;
  IntArrayRef sizes() const;
  bool is_contiguous() const;
  bool is_same(const Tensor&) const noexcept;
  bool requires_grad() const;
  const Tensor& requires_grad_(bool = true) const;
  std::size_t use_count() const noexcept;
  const c10::Storage& storage() const;
  void reset();
  Tensor contiguous() const;
  Tensor clone() const;
  Tensor detach() const;
  Tensor& add_(const Tensor&) const;
  Tensor& copy_(const Tensor&) const;
  Tensor& mutable_grad() const;
  c10::TensorImpl* unsafeGetTensorImpl() const;
  template <class T>
  T* mutable_data_ptr() const;
  template <class T>
  const T* const_data_ptr() const;
  template <class T>
  T item() const;
};

Tensor empty(IntArrayRef, ScalarType);
Tensor zeros_like(const Tensor&);

}  // namespace at

namespace torch {

using namespace at;

struct AutoGradMode {
  explicit AutoGradMode(bool);
};
struct NoGradGuard {
  NoGradGuard();
};
void manual_seed(std::uint64_t);

namespace autograd {

struct Edge {
  bool is_valid() const noexcept;
};
using variable_list = std::vector<Tensor>;
using edge_list = std::vector<Edge>;

namespace impl {
Edge gradient_edge(const Tensor&);
}

struct Engine {
  static Engine& get_default_engine();
  virtual variable_list execute(const edge_list& roots, const variable_list& inputs, bool keep_graph, bool create_graph,
                                bool accumulate_grad, const edge_list& outputs = {});
};

variable_list grad(const variable_list& outputs, const variable_list& inputs);

}  // namespace autograd

template <class Key, class Value>
struct OrderedDict {
  struct Item {
    const Key& key() const noexcept;
    Value& value() noexcept;
    const Value& value() const noexcept;
    Value* operator->() noexcept;
    const Value* operator->() const noexcept;
  };
  const Item* begin() const;
  const Item* end() const;
};

namespace nn {

class Module {
 public:
  virtual ~Module();
  OrderedDict<std::string, Tensor> named_parameters(bool = true) const;
  std::vector<Tensor> buffers(bool = true) const;
};

class AnyModule {
 public:
  std::shared_ptr<Module> ptr() const;
  template <class Result, class... Arguments>
  Result forward(Arguments&&...);
};

struct LinearImpl : Module {
  LinearImpl(std::int64_t, std::int64_t);
  Tensor forward(const Tensor&);
};
struct Linear {
  Linear(std::int64_t, std::int64_t);
  std::shared_ptr<LinearImpl> ptr() const;
};

}  // namespace nn

namespace optim {

struct OptimizerParamState {
  virtual ~OptimizerParamState();
};
struct OptimizerOptions {
  virtual ~OptimizerOptions();
};
struct Optimizer {
  std::unordered_map<void*, std::unique_ptr<OptimizerParamState>>& state() noexcept;
};

struct AdamOptions : OptimizerOptions {
  AdamOptions(double = 1e-3);
  double lr() const;
  std::tuple<double, double> betas() const;
  double eps() const;
  double weight_decay() const;
  bool amsgrad() const;
};
struct AdamParamState : OptimizerParamState {
  void step(const std::int64_t&);
  void exp_avg(const Tensor&);
  void exp_avg_sq(const Tensor&);
  void max_exp_avg_sq(const Tensor&);
  const Tensor& max_exp_avg_sq() const;
};
struct AdamWOptions : AdamOptions {
  AdamWOptions(double = 1e-3);
};
struct AdamWParamState : AdamParamState {};
struct SGDOptions : OptimizerOptions {
  SGDOptions(double);
  double lr() const;
  double momentum() const;
  double dampening() const;
  double weight_decay() const;
  bool nesterov() const;
};
struct SGDParamState : OptimizerParamState {
  void momentum_buffer(const Tensor&);
  const Tensor& momentum_buffer() const;
};

struct Adam : Optimizer {
  Adam(std::vector<Tensor>, AdamOptions);
  Tensor step();
};
struct AdamW : Optimizer {
  AdamW(std::vector<Tensor>, AdamWOptions);
  Tensor step();
};
struct SGD : Optimizer {
  SGD(std::vector<Tensor>, SGDOptions);
  Tensor step();
};

}  // namespace optim

}  // namespace torch
