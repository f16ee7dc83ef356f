// SPDX-License-Identifier: Apache-2.0
// Fits the constants of memory_overheads to measured peaks and tells how well predictions hold, with devices, models and rows
// held out. Usage: memory FOLDER, where FOLDER holds sailor_e2e.csv and megatron_tables.csv.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <hetsched/cost/training_memory.hpp>
#include <hetsched/model/families.hpp>

using namespace hetsched;

namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  if (!parts.empty() && !parts.back().empty() && parts.back().back() == '\r') parts.back().pop_back();
  return parts;
}

using row = std::map<std::string, std::string>;

std::vector<row> read_csv(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw input_error("cannot read " + path);
  std::string line;
  std::getline(file, line);
  const auto names = split(line, ',');
  std::vector<row> rows;
  while (std::getline(file, line)) {
    const auto cells = split(line, ',');
    row& r = rows.emplace_back();
    for (std::size_t i = 0; i < names.size() && i < cells.size(); ++i) r[names[i]] = cells[i];
  }
  return rows;
}

struct measurement {
  std::string site{}, model{}, name{};
  layer_chain chain{};
  std::vector<int> stages{};
  degrees shape{};
  stage_memory_options options{};
  double bytes = 0;
};

// The largest need of any stage under 1F1B.
double predict(const measurement& m, const memory_overheads& overheads) {
  double most = 0;
  layer_range layers{0, 0};
  auto options = m.options;
  options.overheads = overheads;
  const int count = static_cast<int>(m.stages.size());
  for (int i = 0; i < count; ++i) {
    layers = {layers.last, layers.last + m.stages[static_cast<std::size_t>(i)]};
    options.in_flight = count - i;
    most = std::max(most, static_cast<double>(stage_memory(m.chain, layers, m.shape, options).total()));
  }
  return most;
}

struct errors {
  double lowest = 0, highest = 0, sum = 0, over = 0;
  int count = 0;
  void add(double e) {
    lowest = count ? std::min(lowest, e) : e;
    highest = count ? std::max(highest, e) : e;
    sum += std::abs(e);
    over += e;
    ++count;
  }
  void print(const char* name) const {
    std::printf("%-58s %2d rows: mean %5.1f%%, mean of absolutes %4.1f%%, from %5.1f%% to %5.1f%%\n", name, count,
                100 * over / count, 100 * sum / count, 100 * lowest, 100 * highest);
  }
};

// Least squares of the relative error over a grid, coarse enough that the constants are round numbers; then the least margin, in
// whole percent, with which no fitted row is more than 2 % under the truth.
memory_overheads fit(const std::vector<const measurement*>& rows) {
  memory_overheads best{};
  double least = 1e300;
  for (int runtime = 0; runtime <= 45; ++runtime)
    for (int step = 0; step <= 24; step += 4)
      for (int fragments = 0; fragments <= 10; fragments += 2) {
        const memory_overheads o{runtime * bytes_t{100'000'000}, step, fragments / 100.0, 0};
        double sum = 0;
        for (const auto* m : rows) {
          const double e = predict(*m, o) / m->bytes - 1;
          sum += e * e;
        }
        if (sum < least) least = sum, best = o;
      }
  double lowest = 0;
  for (const auto* m : rows) lowest = std::min(lowest, predict(*m, best) / m->bytes - 1);
  best.margin = std::max(0.0, std::ceil(100 * (0.98 / (1 + lowest) - 1)) / 100);
  return best;
}

std::vector<measurement> read_sailor(const std::string& folder) {
  std::vector<measurement> found;
  for (auto& r : read_csv(folder + "/sailor_e2e.csv")) {
    measurement m{.site = r["site"], .model = r["model"], .name = r["config"]};
    for (const auto& n : split(r["layers_per_stage"], '-')) m.stages.push_back(std::stoi(n));
    int layers = 0;
    for (const int n : m.stages) layers += n;
    // The row of GPT-Neo with 26 layers is a plan of OPT, whose count that is.
    if (layers == 26) m.model = "OPT-350";
    const bool opt = m.model == "OPT-350";
    m.chain = make_chain(opt ? gpt({.layers = 24, .hidden = 1024, .heads = 16, .vocab = 50304, .sequence = 2048})
                             : gpt({.layers = 32, .hidden = 2560, .heads = 20, .vocab = 50304, .sequence = 2048}));
    m.shape = {.data = std::stoi(r["dp"]), .context = 1, .tensor = std::stoi(r["tp"])};
    m.options = {.samples = std::stoi(r["mbs"]), .sequence_parallel = false, .attention_scale = opt ? 1.0 : 1.4};
    m.bytes = std::stod(r["max_mem_bytes"]);
    found.push_back(std::move(m));
  }
  return found;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) throw input_error("usage: memory FOLDER");
  const auto all = read_sailor(argv[1]);
  // One plan holds less than half of what the activations of its microbatches take: its degrees cannot be as noted.
  const auto odd = [](const measurement& m) { return m.site == "mit" && m.name == "plan_config_N2_D1"; };
  const auto select = [&](const std::function<bool(const measurement&)>& keep) {
    std::vector<const measurement*> rows;
    for (const auto& m : all)
      if (!odd(m) && keep(m)) rows.push_back(&m);
    return rows;
  };
  const auto judge = [&](const char* name, const memory_overheads& o, const std::vector<const measurement*>& rows) {
    errors e;
    for (const auto* m : rows) e.add(predict(*m, o) / m->bytes - 1);
    e.print(name);
  };
  const auto every = select([](const auto&) { return true; });
  const auto shipped = fit(every);
  std::printf("fitted: runtime_bytes %lld, step_bytes %d, fragmentation %.2f, margin %.2f\n",
              static_cast<long long>(shipped.runtime_bytes), shipped.step_bytes, shipped.fragmentation, shipped.margin);
  const memory_overheads defaults{.step_bytes = flattening_step_bytes};
  if (shipped.runtime_bytes != defaults.runtime_bytes || shipped.step_bytes != defaults.step_bytes ||
      shipped.fragmentation != defaults.fragmentation || shipped.margin != defaults.margin)
    std::printf("THE SHIPPED CONSTANTS DIFFER\n");
  judge("fitted to all", shipped, every);
  errors one;
  for (const auto* held : every)
    one.add(predict(*held, fit(select([&](const auto& m) { return &m != held; }))) / held->bytes - 1);
  one.print("each row held out");
  for (const std::string site : {"clariden", "mit"}) {
    const auto o = fit(select([&](const auto& m) { return m.site != site; }));
    judge(("held out: devices of " + site).c_str(), o, select([&](const auto& m) { return m.site == site; }));
  }
  for (const std::string model : {"OPT-350", "GPT-NEO"}) {
    const auto o = fit(select([&](const auto& m) { return m.model != model; }));
    judge(("held out: " + model).c_str(), o, select([&](const auto& m) { return m.model == model; }));
  }
  for (const auto& m : all) {
    const double p = predict(m, shipped);
    std::printf("  %-9s %-8s %-26s %6.2f GB measured, %6.2f GB predicted, %+6.1f%%%s\n", m.site.c_str(), m.model.c_str(),
                m.name.c_str(), m.bytes / 1e9, p / 1e9, 100 * (p / m.bytes - 1), odd(m) ? " (left out)" : "");
  }

  // What ran must fit: 80 GB boards, whole blocks spread over the stages.
  std::printf("plans that ran on 80 GB boards\n");
  for (auto& r : read_csv(std::string(argv[1]) + "/megatron_tables.csv")) {
    if (r["mbs"].empty()) continue;
    const int layers = std::stoi(r["layers"]), stages = std::stoi(r["pp"]), tensor = std::stoi(r["tp"]);
    const auto chain = make_chain(gpt({.layers = layers,
                                       .hidden = std::stoi(r["hidden"]),
                                       .heads = std::stoi(r["heads"]),
                                       .vocab = std::stoi(r["vocab"]),
                                       .sequence = std::stoi(r["seq"])}));
    measurement m{.chain = chain, .stages = std::vector<int>(static_cast<std::size_t>(stages), layers / stages)};
    ++m.stages.front();
    ++m.stages.back();
    m.shape = {.data = std::stoi(r["dp"]), .context = 1, .tensor = tensor};
    const bool sequence = r["mode"].find("seqpar") != std::string::npos;
    m.options = {.samples = std::stoi(r["mbs"]),
                 .recompute = sequence ? recomputation::selective : recomputation::full,
                 .sequence_parallel = sequence};
    if (r["table"].find("ZeRO3") != std::string::npos) m.options.state.zero = 3;
    std::printf("  %-14s %-11s tp %d pp %2d dp %4d mbs %s: whole process %6.1f GB, live tensors %6.1f GB\n", r["table"].c_str(),
                r["model"].c_str(), tensor, stages, m.shape.data, r["mbs"].c_str(), predict(m, memory_overheads{}) / 1e9,
                predict(m, {0, 0, 0, 0}) / 1e9);
  }
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
