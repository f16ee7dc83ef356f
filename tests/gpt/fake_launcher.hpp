// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include <gpt_cuda/products.hpp>
#include <gpt_cuda/tensor.hpp>
#include <hetsched/cuda_check/api.hpp>

/// Kernels of the example on the fake: jobs that are told which memory they read and write.
template <>
struct gpt_cuda::launcher<hetsched::cuda_check::api> {
  using queue = hetsched::cuda_queue<hetsched::cuda_check::api>;
  using view = hetsched::cuda_check::machine::view;
  using range = hetsched::cuda_check::machine::range;

  template <class T>
  static void add(std::vector<range>& ranges, const argument<T>& a) {
    if (a.data) ranges.push_back({a.data, a.bytes, !std::is_const_v<T>});
  }
  template <class T>
  static void add(std::vector<range>& ranges, const T& a) {
    if constexpr (requires(T & t) { t.visit_memory([](auto&, int) {}); }) {
      auto copy = a;
      copy.visit_memory([&]<class Number>(Number* p, int n) {
        add(ranges, argument<Number>{p, static_cast<std::size_t>(n) * sizeof *p});
      });
    }
  }
  template <class T>
  static T* seen(const view& v, const argument<T>& a) {
    if (!a.data) return nullptr;
    using plain = std::remove_const_t<T>;
    if constexpr (std::is_same_v<T, void>)
      return v.write(static_cast<char*>(a.data));
    else if constexpr (std::is_void_v<plain>)
      return v.read(static_cast<const char*>(a.data));
    else if constexpr (std::is_const_v<T>)
      return v.read(a.data);
    else
      return v.write(a.data);
  }
  template <class T>
  static T seen(const view& v, const T& a) {
    auto here = a;
    if constexpr (requires { here.visit_memory([](auto&, int) {}); })
      here.visit_memory(
          [&](auto*& p, int) { p = seen(v, argument<std::remove_pointer_t<std::remove_reference_t<decltype(p)>>>{p}); });
    return here;
  }
  template <class Work, class... Arguments>
  static void launch(const queue& q, Work work, const Arguments&... a) {
    std::vector<range> ranges;
    (add(ranges, a), ...);
    q.own()->require(q.api().gpus->launch(q.stream(), "a kernel", std::move(ranges), std::move(work)), "a kernel");
  }
  template <class Body, class... Arguments>
  static void each(const queue& q, int n, const Body& body, const Arguments&... a) {
    launch(
        q,
        [=](const view& v) {
          const auto all = [&](auto... here) {
            for (int i = 0; i < n; ++i) body(i, here...);
          };
          all(seen(v, a)...);
        },
        a...);
  }
  template <class Body, class... Arguments>
  static void teams(const queue& q, int n, const Body& body, const Arguments&... a) {
    launch(
        q,
        [=](const view& v) {
          const auto all = [&](auto... here) {
            for (int i = 0; i < n; ++i) body(one_lane{}, i, here...);
          };
          all(seen(v, a)...);
        },
        a...);
  }
  /// A product, with what a cuBLASLt has besides.
  static void multiply(const queue& q, const product_call& p, void* workspace = nullptr, std::size_t workspace_bytes = 0) {
    std::vector<range> ranges;
    product_call::visit(p, [&](const auto& a) { add(ranges, a); });
    add(ranges, argument<void>{workspace, workspace_bytes});
    q.own()->require(q.api().gpus->launch(q.stream(), "a product", std::move(ranges),
                                          [=](const view& v) {
                                            auto here = p;
                                            product_call::visit(here, [&](auto& a) { a.data = seen(v, a); });
                                            multiply_on_host(here);
                                          }),
                     "a product");
  }
  static bool multiply_with(const queue& q, const product_call& p);
};

/// cuBLASLt on the fake, as strict as its manual: sizes and types are those of the plan, memory and columns are aligned, `aux`
/// lies as it has to, and there is room to work. What is wrong is status 7 (CUBLAS_STATUS_INVALID_VALUE).
struct fake_cublas_lt {
  using queue = hetsched::cuda_queue<hetsched::cuda_check::api>;
  struct plan {
    gpt_cuda::product_call of;
    std::size_t workspace_bytes = 0;
  };
  struct habits {
    std::set<gpt_cuda::epilogue> lacks, breaks;  ///< not chosen; chosen, and then not supported
    std::atomic<int> chosen = 0, done = 0;
  };
  static habits& known() {
    static habits own;
    return own;
  }
  [[nodiscard]] static std::unique_ptr<plan> choose(const gpt_cuda::product_call& p, std::size_t most_workspace_bytes) {
    ++known().chosen;
    if (known().lacks.contains(p.after)) return nullptr;
    auto made = std::make_unique<plan>();
    made->of = p;
    made->workspace_bytes = p.m % 3 == 0 ? 0 : std::min<std::size_t>(most_workspace_bytes, 512);
    return made;
  }
  [[nodiscard]] static int matmul(const plan& with, const gpt_cuda::product_call& p, void* workspace, std::size_t workspace_bytes,
                                  const queue& q) {
    using gpt_cuda::epilogue;
    const auto& w = with.of;
    const bool same = p.m == w.m && p.n == w.n && p.k == w.k && p.transpose_a == w.transpose_a &&
                      p.transpose_b == w.transpose_b && p.half == w.half && p.lda == w.lda && p.ldb == w.ldb && p.ldc == w.ldc &&
                      p.after == w.after && (p.half_c.data == nullptr) == (w.half_c.data == nullptr);
    const std::size_t each = p.half ? 2 : 4, each_c = p.half_c.data ? 2 : 4;
    const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n);
    const auto lies = [](const auto& a, std::size_t bytes) {
      return a.data && a.bytes >= bytes && reinterpret_cast<std::uintptr_t>(a.data) % 16 == 0;
    };
    const auto apart = [](int columns, std::size_t bytes, int least) {
      return columns >= least && static_cast<std::size_t>(columns) * bytes % 16 == 0;
    };
    const bool has_aux = p.keeps_aux() || p.takes_aux();
    const std::size_t c_bytes = ((n - 1) * static_cast<std::size_t>(p.ldc) + m) * each_c;
    const bool good = same && apart(p.lda, each, p.transpose_a ? p.k : p.m) && apart(p.ldb, each, p.transpose_b ? p.n : p.k) &&
                      apart(p.ldc, each_c, p.m) && lies(p.a, 1) && lies(p.b, 1) &&
                      (p.half_c.data ? lies(p.half_c, c_bytes) : lies(p.c, c_bytes)) &&
                      (!p.has_bias() || lies(p.bias, m * each_c)) && (!p.sums_bias() || lies(p.summed_bias, m * each_c)) &&
                      (!has_aux || (p.ldc % 8 == 0 && (p.keeps_aux() ? lies(p.kept_aux, c_bytes) : lies(p.aux, c_bytes)))) &&
                      workspace_bytes >= with.workspace_bytes &&
                      (workspace_bytes == 0 || reinterpret_cast<std::uintptr_t>(workspace) % 16 == 0);
    if (!good) return 7;
    if (known().breaks.contains(p.after)) return 15;
    ++known().done;
    gpt_cuda::launcher<hetsched::cuda_check::api>::multiply(q, p, workspace, workspace_bytes);
    return 0;
  }
};

inline bool gpt_cuda::launcher<hetsched::cuda_check::api>::multiply_with(const queue& q, const product_call& p) {
  // A thread has one for each device; its plans are not of a device here.
  static thread_local std::map<int, fused_products<fake_cublas_lt, hetsched::cuda_check::api>> own;
  return own[q.device()].multiply(q, p);
}
