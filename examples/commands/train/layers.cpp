// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <hetsched/runtime/communicator/communicator.hpp>

#include <gpt/batch.hpp>
#include <gpt/model.hpp>
#include <train/layers.hpp>
#include <train/model.hpp>

namespace train {

template <class Real>
hetsched::any_layer<gpt::tensor<Real>> make_layer(const gpt::config& m, int layer) {
  return gpt::make_layer<Real>(m, layer);
}

template <class Real>
hetsched::loss_value<gpt::tensor<Real>> cross_entropy(const gpt::tensor<Real>& logits, const gpt::tensor<Real>& targets) {
  return gpt::cross_entropy(logits, targets);
}

template <class Real>
std::vector<hetsched::layer_profile> profile_model(const gpt::config& m, std::string_view text, int samples,
                                                   const hetsched::profile_options& options) {
  const auto batch = gpt::draw<Real>(text, m.sequence, {.seed = m.seed, .step = 0, .first_sample = 0, .samples = samples});
  return hetsched::profile_layers(
      {0, gpt::layer_count(m)}, batch.inputs, [&](int layer) { return gpt::make_layer<Real>(m, layer); },
      [&](int layer) { return layer_kind(m, layer); },
      [&](const gpt::tensor<Real>& logits) { return gpt::cross_entropy(logits, batch.targets); }, options);
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

template hetsched::any_layer<gpt::tensor<float>> make_layer<float>(const gpt::config&, int);
template hetsched::any_layer<gpt::tensor<double>> make_layer<double>(const gpt::config&, int);
template hetsched::loss_value<gpt::tensor<float>> cross_entropy<float>(const gpt::tensor<float>&, const gpt::tensor<float>&);
template hetsched::loss_value<gpt::tensor<double>> cross_entropy<double>(const gpt::tensor<double>&, const gpt::tensor<double>&);
template std::vector<hetsched::layer_profile> profile_model<float>(const gpt::config&, std::string_view, int,
                                                                   const hetsched::profile_options&);
template std::vector<hetsched::layer_profile> profile_model<double>(const gpt::config&, std::string_view, int,
                                                                    const hetsched::profile_options&);
template double matrix_flops<float>();
template double matrix_flops<double>();

}  // namespace train
