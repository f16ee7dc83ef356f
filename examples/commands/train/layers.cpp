// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include <hetsched/runtime/communicator/communicator.hpp>

#include <gpt/batch.hpp>
#include <gpt/model.hpp>
#include <train/cached_layers.hpp>
#include <train/layers.hpp>
#include <train/model.hpp>

namespace train {

template <class Real>
hetsched::any_layer<gpt::tensor<Real>> make_layer(const gpt::config& m, int layer, const hetsched::device_axis<Real>& axis,
                                                  hetsched::recomputation recompute, const hetsched::device_axis<Real>& context,
                                                  const hetsched::device_axis<Real>& expert, const std::vector<double>& shares) {
  return gpt::make_layer<Real>(m, layer, axis, recompute, context, expert, shares);
}

template <class Real>
hetsched::loss_value<gpt::tensor<Real>> cross_entropy_part(gpt::tensor<Real> logits, const gpt::tensor<Real>& targets,
                                                           std::size_t all_rows) {
  return gpt::cross_entropy_part(std::move(logits), targets, all_rows);
}

template <class Real>
std::vector<hetsched::layer_profile> profile_model(const gpt::config& m, std::string_view text, int samples,
                                                   const hetsched::profile_options& options,
                                                   const hetsched::device_axis<Real>& axis) {
  const auto batch = gpt::draw<Real>(text, m.sequence, {.seed = m.seed, .step = 0, .first_sample = 0, .samples = samples});
  const auto own_rows = [&](const gpt::tensor<Real>& all) {
    return gpt::rows_of(all, m.sequence, {.data = 1, .context = 1, .tensor = axis.size()},
                        hetsched::stage_place{.tensor = axis.rank()});
  };
  const auto targets = own_rows(batch.targets);
  return hetsched::profile_layers(
      {0, gpt::layer_count(m)}, own_rows(batch.inputs), [&](int layer) { return gpt::make_layer<Real>(m, layer, axis); },
      [&](int layer) { return layer_kind(m, layer); },
      [&](gpt::tensor<Real> logits) { return gpt::cross_entropy(std::move(logits), targets); }, options);
}

template <class Real>
double matrix_flops() {
  constexpr Eigen::Index n = 192;
  const gpt::matrix<Real> a = gpt::matrix<Real>::Ones(n, n), b = gpt::matrix<Real>::Ones(n, n);
  gpt::matrix<Real> c(n, n);
  double best_s = 1e9;
  for (int run = 0; run < 8; ++run) {
    const double start_s = hetsched::steady_now_s();
    c.noalias() = a * b;
    best_s = std::min(best_s, hetsched::steady_now_s() - start_s);
  }
  return 2.0 * n * n * n * (c(0, 0) > 0 ? 1 : 0) / best_s;
}

template hetsched::any_layer<gpt::tensor<float>> make_layer<float>(const gpt::config&, int, const hetsched::device_axis<float>&,
                                                                   hetsched::recomputation, const hetsched::device_axis<float>&,
                                                                   const hetsched::device_axis<float>&,
                                                                   const std::vector<double>&);
template hetsched::any_layer<gpt::tensor<double>> make_layer<double>(
    const gpt::config&, int, const hetsched::device_axis<double>&, hetsched::recomputation, const hetsched::device_axis<double>&,
    const hetsched::device_axis<double>&, const std::vector<double>&);
template hetsched::loss_value<gpt::tensor<float>> cross_entropy_part<float>(gpt::tensor<float>, const gpt::tensor<float>&,
                                                                            std::size_t);
template hetsched::loss_value<gpt::tensor<double>> cross_entropy_part<double>(gpt::tensor<double>, const gpt::tensor<double>&,
                                                                              std::size_t);
template std::vector<hetsched::layer_profile> profile_model<float>(const gpt::config&, std::string_view, int,
                                                                   const hetsched::profile_options&,
                                                                   const hetsched::device_axis<float>&);
template std::vector<hetsched::layer_profile> profile_model<double>(const gpt::config&, std::string_view, int,
                                                                    const hetsched::profile_options&,
                                                                    const hetsched::device_axis<double>&);
template double matrix_flops<float>();
template double matrix_flops<double>();

}  // namespace train

template class gpt::cached_layer<float>;
template class gpt::cached_layer<double>;
