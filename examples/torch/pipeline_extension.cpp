// SPDX-License-Identifier: Apache-2.0
// A module of Python: trains torch.nn.Modules as pipelines, by a plan, over torch's own process group. train_pipeline.py builds
// and uses it.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/runtime.hpp>
#include <hetsched/schedule.hpp>
#include <hetsched/torch.hpp>
#include <hetsched/torch/process_group.hpp>
#include <hetsched/torch/state_file.hpp>

namespace py = pybind11;

namespace {

using group = c10::intrusive_ptr<c10d::ProcessGroup>;
using communicator = hetsched::torch_group_communicator<at::Tensor>;
using adamw = hetsched::torch_optimizer<torch::optim::AdamW>;

/// What belongs to Python is let go of with its lock held.
std::shared_ptr<py::object> held(py::object o) {
  return {new py::object(std::move(o)), [](py::object* last) {
            const py::gil_scoped_acquire lock;
            delete last;
          }};
}

/// An nn.Module as a layer: its parameters and buffers by their names, and a forward that Python computes.
hetsched::torch_layer<> layer_of(const py::function& make, int number) {
  const py::gil_scoped_acquire lock;
  const auto module = held(make(number));
  const auto named = [&](const char* which) { return py::list(module->attr(which)()).cast<hetsched::named_torch_tensors>(); };
  return {hetsched::named_torch_module(named("named_parameters"), named("named_buffers")), [module](const at::Tensor& x) {
            const py::gil_scoped_acquire lock;
            return (*module)(x).cast<at::Tensor>();
          }};
}

/// `plan`: a file that hetsched-plan has written, or the name of a schedule for layers of the same cost.
hetsched::training_layout layout_of(const std::string& plan, int ranks, int layers, int microbatches, int samples) {
  if (plan.ends_with(".json")) return hetsched::make_training_layout(hetsched::read_plan(plan).plan);
  const std::vector<double> even(static_cast<std::size_t>(ranks), 1.0);
  const hetsched::pipeline same{.forward_s = even, .backward_s = even, .transfer_s = {even.begin() + 1, even.end()}};
  return hetsched::even_layout(layers, hetsched::build_schedule(plan, same, microbatches), samples);
}

class trainer {
 public:
  /// `shapes`: of the input of a microbatch, then of what each layer returns.
  trainer(const group& world, const std::string& plan, const py::function& make,
          const std::vector<hetsched::tensor_shape>& shapes, int microbatches, double learning_rate)
      : comm_(world, {.tag = trainers++}),
        trainer_(hetsched::make_trainer<at::Tensor>(
            layout_of(plan, comm_.ranks(), static_cast<int>(shapes.size()) - 1, microbatches,
                      static_cast<int>(shapes.at(0).at(0))),
            [&](int layer) { return layer_of(make, layer); },
            [shapes](int layer) { return shapes.at(static_cast<std::size_t>(layer + 1)); }, comm_,
            adamw{torch::optim::AdamWOptions(learning_rate)})) {}

  /// The mean loss of a batch, of as many inputs and targets as there are microbatches.
  double step(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets, const py::function& loss) {
    return trainer_
        .step(inputs, targets, hetsched::torch_loss([&](const at::Tensor& output, const at::Tensor& target) {
                const py::gil_scoped_acquire lock;
                return loss(output, target).cast<at::Tensor>();
              }))
        .loss;
  }
  /// One file of all ranks, which torch.load reads, and back.
  void save(const std::string& path) { hetsched::save_torch(trainer_, comm_, path); }
  void load(const std::string& path) { hetsched::load_torch(trainer_, comm_, path); }

 private:
  inline static int trainers = 0;  // all ranks make them in one order
  communicator comm_;
  hetsched::pipeline_trainer<at::Tensor, hetsched::torch_layer<>, communicator, adamw> trainer_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  // Ranks wait for each other, and autograd runs on threads of its own: without Python's lock.
  using unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<trainer>(module, "Trainer")
      .def(py::init<const group&, const std::string&, const py::function&, const std::vector<hetsched::tensor_shape>&, int,
                    double>(),
           py::arg("group"), py::arg("plan"), py::arg("make_layer"), py::arg("shapes"), py::arg("microbatches"),
           py::arg("learning_rate"), unlocked())
      .def("step", &trainer::step, py::arg("inputs"), py::arg("targets"), py::arg("loss"), unlocked())
      .def("save", &trainer::save, py::arg("path"), unlocked())
      .def("load", &trainer::load, py::arg("path"), unlocked());
}
