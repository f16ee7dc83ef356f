// SPDX-License-Identifier: Apache-2.0
#include <hetsched/model/families.hpp>
#include "../documents.hpp"

using namespace hetsched;

namespace {

// Published parameter counts, of models whose config.json is as Hugging Face has it (shortened).
struct published {
  const char* config;
  double parameters;
};

const published models[] = {
    {R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
         "n_head": 12, "n_layer": 12, "n_positions": 1024, "n_inner": null, "vocab_size": 50257, "task_specific_params": {"a": {"b": 1}}})",
     124'439'808},
    {R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096, "num_attention_heads": 32,
         "num_hidden_layers": 32, "num_key_value_heads": 32, "vocab_size": 32000, "tie_word_embeddings": false, "torch_dtype": "float16"})",
     6'738'415'616},
    {R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
         "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": 4096, "torch_dtype": "bfloat16"})",
     7'241'732'096},
    {R"({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 131072, "num_attention_heads": 14,
         "num_hidden_layers": 24, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": true, "torch_dtype": "bfloat16"})",
     494'032'768},
    {R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
         "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
         "torch_dtype": "bfloat16"})",
     46'702'792'704},
    {R"({"model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "max_position_embeddings": 512, "num_attention_heads": 12,
         "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522, "hidden_act": "gelu"})",
     109'514'298},
    // Pythia-6.9B, OPT-6.7B, Phi-3-mini, Qwen3-0.6B, Qwen3-8B
    {R"({"model_type": "gpt_neox", "hidden_size": 4096, "intermediate_size": 16384, "max_position_embeddings": 2048, "num_attention_heads": 32,
         "num_hidden_layers": 32, "rotary_pct": 0.25, "vocab_size": 50432, "tie_word_embeddings": false, "torch_dtype": "float16"})",
     6'857'302'016},
    {R"({"model_type": "opt", "hidden_size": 4096, "ffn_dim": 16384, "max_position_embeddings": 2048, "num_attention_heads": 32,
         "num_hidden_layers": 32, "do_layer_norm_before": true, "word_embed_proj_dim": 4096, "vocab_size": 50272, "torch_dtype": "float16"})",
     6'658'473'984},
    {R"({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096, "num_attention_heads": 32,
         "num_hidden_layers": 32, "num_key_value_heads": 32, "vocab_size": 32064, "attention_bias": false, "tie_word_embeddings": false})",
     3'821'079'552},
    {R"({"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16,
         "num_hidden_layers": 28, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "attention_bias": false,
         "tie_word_embeddings": true, "torch_dtype": "bfloat16"})",
     596'049'920},
    {R"({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960, "num_attention_heads": 32,
         "num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "attention_bias": false,
         "tie_word_embeddings": false, "torch_dtype": "bfloat16"})",
     8'190'735'360},
    // Gemma-2B, Gemma-2-2B, Gemma-3-1B
    {R"({"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "max_position_embeddings": 8192, "num_attention_heads": 8,
         "num_hidden_layers": 18, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 256000, "torch_dtype": "bfloat16"})",
     2'506'172'416},
    {R"({"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 8192, "num_attention_heads": 8,
         "num_hidden_layers": 26, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000, "sliding_window": 4096})",
     2'614'341'888},
    {R"({"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768,
         "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144})",
     999'885'952},
    // Falcon-7B, Falcon-40B (their output matrix is the embedding), Falcon-RW-1B
    {R"({"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32, "multi_query": true,
         "new_decoder_architecture": false, "parallel_attn": true, "alibi": false, "bias": false, "vocab_size": 65024,
         "torch_dtype": "bfloat16"})",
     6'921'720'704},
    {R"({"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8,
         "new_decoder_architecture": true, "parallel_attn": true, "alibi": false, "bias": false, "vocab_size": 65024,
         "torch_dtype": "bfloat16"})",
     41'303'293'952},
    {R"({"model_type": "falcon", "hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 24, "multi_query": false,
         "new_decoder_architecture": false, "parallel_attn": false, "alibi": true, "bias": true, "vocab_size": 50304,
         "torch_dtype": "bfloat16"})",
     1'311'625'216},
    // DeepSeek-V2-Lite, DeepSeek-V2, DeepSeek-V3 (without the block that predicts one token more)
    {R"({"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
         "num_attention_heads": 16, "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": null, "kv_lora_rank": 512,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
         "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1, "max_position_embeddings": 163840,
         "attention_bias": false, "tie_word_embeddings": false, "vocab_size": 102400, "torch_dtype": "bfloat16"})",
     15'706'484'224},
    {R"({"model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
         "num_attention_heads": 128, "num_hidden_layers": 60, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 160, "n_shared_experts": 2,
         "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1, "max_position_embeddings": 163840,
         "attention_bias": false, "tie_word_embeddings": false, "vocab_size": 102400, "torch_dtype": "bfloat16"})",
     235'741'434'880},
    {R"({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
         "num_attention_heads": 128, "num_hidden_layers": 61, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
         "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1, "max_position_embeddings": 163840,
         "attention_bias": false, "tie_word_embeddings": false, "vocab_size": 129280, "num_nextn_predict_layers": 1,
         "torch_dtype": "bfloat16"})",
     671'026'419'200},
};

}  // namespace

TEST_CASE("Hugging Face configs give the published parameter counts") {
  for (const auto& m : models) {
    CAPTURE(m.config);
    const auto block = parse_model(m.config, "config.json", {.cut = granularity::block, .sequence = 512});
    CHECK(static_cast<double>(parameter_count(block.chain)) == m.parameters);
    const auto fine = parse_model(m.config, "config.json", {.cut = granularity::sublayer, .sequence = 512});
    CHECK(parameter_count(fine.chain) == parameter_count(block.chain));
    CHECK(training_flops(fine.chain) == doctest::Approx(training_flops(block.chain)));
    CHECK(fine.chain.size() == 3 * (block.chain.size() - 2) + 2);
  }
  CHECK(parse_model(models[2].config, "config.json", {.sequence = 64}).precision == precision::bf16);
}

TEST_CASE("wrong configs are refused with their place") {
  const std::string config = models[1].config;
  const documents::kind kind{"model", config, [](std::string_view text) { (void)parse_model(text, "x.json"); }};
  documents::refuses(kind, documents::with(config, "\"llama\"", "\"t5\""), "/model_type", "one of gpt2, gpt_neox");
  documents::refuses(kind, documents::with(config, "\"hidden_size\": 4096", "\"hidden_size\": \"big\""), "/hidden_size",
                     "found \"big\"");
  documents::refuses(kind, documents::with(config, "\"hidden_size\": 4096, ", ""), "/hidden_size", "missing");
  documents::refuses(kind, documents::with(config, "\"hidden_size\": 4096", "\"hidden_size\": 4097"), "",
                     "hidden must be divisible by heads");
  documents::refuses(kind, documents::with(config, "\"float16\"", "\"int8\""), "/torch_dtype", "found \"int8\"");
}

TEST_CASE("a transformer by its sizes: HARP's GPT-39B has 146 layers") {
  const std::string text =
      R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 48, "hidden": 8192, "heads": 64,
                               "vocab": 51200, "sequence": 1024, "dtype": "fp32"}})";
  const auto model = parse_model(text, "x.json");
  CHECK(model.chain.size() == 146);
  CHECK(model.chain.parameter_bytes == 4);
  CHECK(model.precision == precision::fp32);
  CHECK(static_cast<double>(parameter_count(model.chain)) == doctest::Approx(39.1e9).epsilon(0.01));
}

TEST_CASE("explicit layers") {
  const auto model = parse_model(R"({"format": "hetsched/model", "version": 1, "layers": [
      {"name": "a", "forward_flops": 1e9, "weight_bytes": 1000, "activation_bytes": 2000, "boundary_bytes": 300}]})",
                                 "x.json");
  REQUIRE(model.chain.size() == 1);
  const auto& l = model.chain.layers[0];
  CHECK(l.forward_flops == 1e9);
  CHECK(l.backward_flops == 2e9);
  CHECK(l.parameters * model.chain.parameter_bytes == 1000);
  CHECK(l.activation_bytes == 2000);
  CHECK(l.boundary_bytes == 300);
}

TEST_CASE("layers written as a model.json come back with their amounts") {
  const auto chain = make_chain(gpt({.layers = 3, .hidden = 96, .heads = 4, .sequence = 64}), granularity::sublayer);
  const auto back = parse_model(to_model_json(chain), "model.json").chain;
  REQUIRE(back.size() == chain.size());
  for (std::size_t i = 0; i < chain.layers.size(); ++i) {
    const auto &l = chain.layers[i], &r = back.layers[i];
    CAPTURE(l.name);
    CHECK(r.name == l.name);
    CHECK(r.forward_flops == l.forward_flops);
    CHECK(r.parameters == l.parameters);
    CHECK(r.shared_parameters == l.shared_parameters);
    CHECK(r.owner == l.owner);
    CHECK(r.activation_bytes == l.activation_bytes);
    CHECK(r.boundary_bytes == l.boundary_bytes);
  }
  auto wide = chain;
  wide.parameter_bytes = 4;
  CHECK_THROWS_AS((void)to_model_json(wide), input_error);
}

TEST_CASE("sizes whose products overflow are an error with a place") {
  const documents::kind kind{"model", documents::model, [](std::string_view text) { (void)parse_model(text, "x.json"); }};
  documents::refuses(
      kind,
      R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 1, "hidden": 16777216, "heads": 16777216,
                         "vocab": 1000000000, "sequence": 16777216}})",
      "/transformer", "overflow");
}

TEST_CASE("a dtype in place of the file's makes the model that the file would make if it said so") {
  const auto text = [](const std::string& dtype) {
    return R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 2, "hidden": 64, "heads": 4, "vocab": 1000,
              "sequence": 128)" +
           (dtype.empty() ? "" : ", \"dtype\": \"" + dtype + '"') + "}}";
  };
  for (const auto p : {precision::fp32, precision::tf32, precision::fp16, precision::bf16}) {
    const auto said = parse_model(text(std::string(name_of(p))), "x.json");
    CHECK(said.precision == p);
    for (const std::string other : {"", "fp32", "bf16"}) CHECK(parse_model(text(other), "x.json", {.dtype = p}) == said);
    auto of_file = parse_model(documents::with(models[1].config, "\"float16\"", '"' + std::string(name_of(p)) + '"'),
                               "config.json", {.sequence = 64});
    CHECK(of_file.stored_as_fp32 == (p == precision::fp32));
    of_file.stored_as_fp32 = false;
    CHECK(parse_model(models[1].config, "config.json", {.sequence = 64, .dtype = p}) == of_file);
  }

  // Layers are bytes, whose numbers have 16 bits.
  const std::string layers = R"({"format": "hetsched/model", "version": 1, "layers": [
      {"name": "a", "forward_flops": 1e9, "weight_bytes": 1000, "activation_bytes": 2000, "boundary_bytes": 300}]})";
  const auto plain = parse_model(layers, "x.json");
  const auto cast = parse_model(layers, "x.json", {.dtype = precision::bf16});
  CHECK(cast.chain == plain.chain);
  CHECK(cast.precision == precision::bf16);
  const documents::kind kind{"model", layers,
                             [](std::string_view t) { (void)parse_model(t, "x.json", {.dtype = precision::fp32}); }};
  documents::refuses(kind, layers, "/layers", "expected fp16 or bf16 to compute them in, found fp32");
}

TEST_CASE("a gpt2 config without dropout keeps no masks") {
  const auto read = [](const std::string& more) {
    return parse_model(R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100, "n_positions": 32)" +
                           more + "}",
                       "x.json")
        .family->dropout;
  };
  CHECK(read(""));
  CHECK(read(R"(, "resid_pdrop": 0, "embd_pdrop": 0.0)"));
  CHECK_FALSE(read(R"(, "resid_pdrop": 0, "embd_pdrop": 0.0, "attn_pdrop": 0)"));
  CHECK(read(R"(, "resid_pdrop": 0, "embd_pdrop": 0.1, "attn_pdrop": 0)"));
}

TEST_CASE("a model.json may say that there is no dropout") {
  CHECK(parse_model(documents::model, "x.json").family->dropout);
  const auto without = documents::with(documents::model, "\"layers\": 2", "\"dropout\": false, \"layers\": 2");
  const auto read = parse_model(without, "x.json");
  CHECK_FALSE(read.family->dropout);
  CHECK(read.chain.layers[1].activation_bytes < parse_model(documents::model, "x.json").chain.layers[1].activation_bytes);
  CHECK_THROWS_WITH_AS((void)parse_model(documents::with(without, "\"dropout\": false", "\"dropout\": 0.1"), "x.json"),
                       doctest::Contains("/transformer/dropout: found 0.1, expected true or false"), file_error);
}
