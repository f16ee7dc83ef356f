// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

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
  static void add(std::vector<range>&, const T&) {}
  template <class T>
  static T* seen(const view& v, const argument<T>& a) {
    if (!a.data) return nullptr;
    using plain = std::remove_const_t<T>;
    if constexpr (std::is_void_v<plain>)
      return v.read(static_cast<const char*>(a.data));
    else if constexpr (std::is_const_v<T>)
      return v.read(a.data);
    else
      return v.write(a.data);
  }
  template <class T>
  static const T& seen(const view&, const T& a) {
    return a;
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
  static void multiply(const queue& q, const product_call& p) {
    launch(
        q,
        [=](const view& v) {
          auto here = p;
          here.a.data = seen(v, p.a);
          here.b.data = seen(v, p.b);
          here.c.data = seen(v, p.c);
          here.half_c.data = seen(v, p.half_c);
          multiply_on_host(here);
        },
        p.a, p.b, p.c, p.half_c);
  }
};
