// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/eigen.hpp>
#include <hetsched/runtime/layer/layer_stack.hpp>

int main() {
  namespace he = hetsched::eigen;
  using tensor = he::matrix<double>;
  hetsched::random_source random(1);
  hetsched::layer_tuple<tensor, he::linear<double>, he::activation<double>> net(he::linear<double>(3, 2, random),
                                                                                he::activation<double>(he::elementwise::relu));
  auto context = net.make_context();
  const tensor x = tensor::Zero(4, 3), y = net.forward(x, context);
  return y.rows() == 4 && y.cols() == 2 && y.isZero(0) ? 0 : 1;
}
