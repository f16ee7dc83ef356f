// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include <hetsched/io/json/model_json.hpp>
#include <hetsched/io/json_reader.hpp>

#include <train/model.hpp>
#include <train/place.hpp>

void train::add_model_options(CLI::App& app, model_arguments& given) {
  app.add_option("--model", given.file, "model.json with a \"transformer\"; the sizes below override it");
  app.add_option("--layers", given.layers, "blocks (4); embedding and head are layers of their own");
  app.add_option("--hidden", given.hidden, "width (64)");
  app.add_option("--heads", given.heads, "attention heads (4)");
  app.add_option("--kv-heads", given.kv_heads, "heads of keys and values (as many as heads)");
  app.add_option("--ffn", given.ffn, "width inside the MLP (4 * hidden)");
  app.add_option("--sequence", given.sequence, "bytes of a sample (64)");
  const auto choice = [&](const char* name, std::string& value, const char* what, const std::vector<std::string>& known) {
    app.add_option(name, value, what)->check(CLI::IsMember(known))->capture_default_str();
  };
  choice("--norm", given.norm, "layer or rms", {"layer", "rms"});
  choice("--activation", given.activation, "of the MLP", {"gelu", "swiglu"});
  choice("--positions", given.positions, "learned or rotary", {"learned", "rotary"});
  choice("--precision", given.precision, "of all numbers", {"fp32", "fp64"});
  app.add_flag("--tied,!--untied", given.tied, "the head uses the embedding's table (default), or one of its own");
  app.add_flag("--bias,!--no-bias", given.bias, "linear layers in blocks have biases (default), or none");
  app.add_option("--seed", given.seed, "of first weights and batches")->capture_default_str();
}

void train::add_place_options(CLI::App& app, place_arguments& given) {
  app.add_option("--transport", given.transport, "threads of this process, or gloo or mpi: one process per rank")
      ->check(CLI::IsMember({"threads", "gloo", "mpi"}))
      ->capture_default_str();
  app.add_option("--ranks", given.ranks, "threads: how many; gloo, mpi: as the launcher says")->check(CLI::Range(1, 1024));
  app.add_option("--store", given.store,
                 "gloo: where ranks meet, file:FOLDER, redis://HOST:PORT or torch://HOST:PORT (torchrun's own, unless said)");
  app.add_option("--run-name", given.run, "gloo: tells runs apart that meet in one store");
  app.add_option("--interface", given.interface, "gloo: network interface to use");
  app.add_option("--address", given.address, "gloo: own address to use");
  app.add_option("--secret-file", given.secret_file,
                 "gloo: a file whose first line all ranks prove to know (else HETSCHED_SECRET, if it is set)");
  app.add_option("--connect-deadline", given.connect_deadline_s, "gloo, mpi: seconds until all ranks have come")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str();
  app.add_option("--deadline", given.deadline_s, "seconds that a rank waits for others before the run ends with an error")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str();
}

gpt::config train::read_config(const model_arguments& given) {
  gpt::config m;
  if (!given.file.empty()) {
    const auto text = hetsched::read_text(given.file);
    (void)hetsched::parse_model(text, given.file);  // whatever is wrong with it is told as by the other commands
    const hetsched::detail::json_document document(text, given.file);
    if (!document.value().has("transformer"))
      throw hetsched::file_error(given.file, "/transformer", "missing: the example trains a model.json with a transformer");
    const auto sizes = document.value().at("transformer");
    const auto size = [&](const char* key, int otherwise) {
      return sizes.has(key) ? sizes.at(key).count(0, 1 << 30) : otherwise;
    };
    if (size("vocab", 256) < 256) sizes.at("vocab").expected("at least 256, a token per byte");
    m.layers = size("layers", m.layers);
    m.hidden = size("hidden", m.hidden);
    m.heads = size("heads", m.heads);
    m.kv_heads = size("kv_heads", 0);
    m.ffn_hidden = size("ffn_hidden", 0);
    m.sequence = size("sequence", m.sequence);
    m.vocab = size("vocab", 256);
    m.experts = size("experts", 0);
    m.experts_per_token = size("experts_per_token", std::min(2, std::max(1, m.experts)));
    m.moe_every = size("moe_every", 1);
  }
  m.layers = given.layers.value_or(m.layers);
  m.hidden = given.hidden.value_or(m.hidden);
  m.heads = given.heads.value_or(m.heads);
  m.kv_heads = given.kv_heads.value_or(m.kv_heads);
  m.ffn_hidden = given.ffn.value_or(m.ffn_hidden);
  m.sequence = given.sequence.value_or(m.sequence);
  m.norm = given.norm == "rms" ? gpt::norm_kind::rms : gpt::norm_kind::layer;
  m.activation = given.activation == "swiglu" ? gpt::activation_kind::swiglu : gpt::activation_kind::gelu;
  m.positions = given.positions == "rotary" ? gpt::position_kind::rotary : gpt::position_kind::learned;
  m.bias = given.bias;
  m.tied = given.tied;
  m.seed = given.seed;
  gpt::validate(m);
  return m;
}

std::string train::to_model_json(const gpt::config& m) {
  nlohmann::ordered_json sizes{
      {"layers", m.layers},          {"hidden", m.hidden}, {"heads", m.heads},       {"kv_heads", m.key_heads()},
      {"ffn_hidden", m.ffn_width()}, {"vocab", m.vocab},   {"sequence", m.sequence}, {"dtype", "fp32"}};
  if (m.experts > 0) {
    sizes["experts"] = m.experts;
    sizes["experts_per_token"] = m.experts_per_token;
    sizes["moe_every"] = m.moe_every;
  }
  return hetsched::detail::dump({{"format", "hetsched/model"}, {"version", 1}, {"transformer", std::move(sizes)}});
}

std::string train::read_corpus(const std::string& file) {
  return hetsched::read_text(file.empty() ? std::string(HETSCHED_EXAMPLES) + "/gpt/alice.txt" : file);
}
