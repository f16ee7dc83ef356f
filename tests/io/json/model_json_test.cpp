// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

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
    // Counted by transformers 5.24 with the model on PyTorch's meta device, its corrections of routers (buffers there) included.
    // For EXAONE-4.0, ChatGLM3, Qwen-7B, Baichuan2 and DeepSeek-MoE, which it has no class for or cannot build, from the shapes
    // of their code: 1.28, 6.24, 7.72, 7.51 and 16.4 billion are published. Of models that see images, the text model.
    // Qwen3-30B-A3B
    {R"({"model_type": "qwen3_moe", "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048,
         "intermediate_size": 6144, "max_position_embeddings": 40960, "mlp_only_layers": [], "moe_intermediate_size": 768,
         "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
         "num_key_value_heads": 4, "vocab_size": 151936, "tie_word_embeddings": false})",
     30'532'122'624},
    // Qwen3-235B-A22B
    {R"({"model_type": "qwen3_moe", "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 4096,
         "intermediate_size": 12288, "max_position_embeddings": 40960, "mlp_only_layers": [], "moe_intermediate_size": 1536,
         "num_attention_heads": 64, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 94,
         "num_key_value_heads": 4, "vocab_size": 151936, "tie_word_embeddings": false})",
     235'093'634'560},
    // Qwen1.5-MoE-A2.7B
    {R"({"model_type": "qwen2_moe", "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 5632,
         "max_position_embeddings": 8192, "max_window_layers": 21, "moe_intermediate_size": 1408, "num_attention_heads": 16,
         "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
         "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "use_sliding_window": false, "vocab_size": 151936,
         "tie_word_embeddings": false})",
     14'315'784'192},
    // gpt-oss-20b
    {R"({"model_type": "gpt_oss", "attention_bias": true, "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
         "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
         "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
         "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
         "full_attention"], "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
         "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "sliding_window": 128, "vocab_size":
         201088, "tie_word_embeddings": false})",
     20'914'757'184},
    // gpt-oss-120b
    {R"({"model_type": "gpt_oss", "attention_bias": true, "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
         "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
         "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
         "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
         "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
         "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
         "full_attention"], "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
         "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128, "sliding_window": 128, "vocab_size":
         201088, "tie_word_embeddings": false})",
     116'829'156'672},
    // OLMo-2-7B
    {R"({"model_type": "olmo2", "attention_bias": false, "hidden_size": 4096, "intermediate_size": 11008,
         "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
         "rms_norm_eps": 1e-06, "vocab_size": 100352, "tie_word_embeddings": false})",
     7'298'617'344},
    // OLMo-7B
    {R"({"model_type": "olmo", "attention_bias": false, "hidden_size": 4096, "intermediate_size": 11008,
         "max_position_embeddings": 2048, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
         "vocab_size": 50304, "tie_word_embeddings": false})",
     6'888'095'744},
    // OLMoE-1B-7B
    {R"({"model_type": "olmoe", "attention_bias": false, "hidden_size": 2048, "intermediate_size": 1024,
         "max_position_embeddings": 4096, "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
         "num_hidden_layers": 16, "num_key_value_heads": 16, "vocab_size": 50304, "tie_word_embeddings": false})",
     6'919'161'856},
    // GLM-4-9B
    {R"({"model_type": "glm", "attention_bias": true, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 13696,
         "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
         "vocab_size": 151552, "tie_word_embeddings": false})",
     9'399'951'360},
    // GLM-4-9B-0414
    {R"({"model_type": "glm4", "attention_bias": false, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 13696,
         "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
         "vocab_size": 151552, "tie_word_embeddings": false})",
     9'400'094'720},
    // GLM-4.5-Air
    {R"({"model_type": "glm4_moe", "attention_bias": true, "first_k_dense_replace": 1, "head_dim": 128, "hidden_size": 4096,
         "intermediate_size": 10944, "max_position_embeddings": 131072, "moe_intermediate_size": 1408, "n_routed_experts": 128,
         "n_shared_experts": 1, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 46,
         "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "use_qk_norm": false, "vocab_size": 151552,
         "tie_word_embeddings": false})",
     106'852'251'264},
    // GLM-4.5
    {R"({"model_type": "glm4_moe", "attention_bias": true, "first_k_dense_replace": 3, "head_dim": 128, "hidden_size": 5120,
         "intermediate_size": 12288, "max_position_embeddings": 131072, "moe_intermediate_size": 1536, "n_routed_experts": 160,
         "n_shared_experts": 1, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 92,
         "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "use_qk_norm": true, "vocab_size": 151552,
         "tie_word_embeddings": false})",
     352'797'829'024},
    // SmolLM3-3B
    {R"({"model_type": "smollm3", "attention_bias": false, "hidden_size": 2048, "intermediate_size": 11008,
         "max_position_embeddings": 65536, "mlp_bias": false, "num_attention_heads": 16, "num_hidden_layers": 36,
         "num_key_value_heads": 4, "use_sliding_window": false, "vocab_size": 128256})",
     3'075'098'624},
    // StarCoder2-3B
    {R"({"model_type": "starcoder2", "hidden_size": 3072, "intermediate_size": 12288, "max_position_embeddings": 16384,
         "norm_type": "layer_norm", "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
         "sliding_window": 4096, "use_bias": true, "vocab_size": 49152})",
     3'030'371'328},
    // Granite-3.0-8B
    {R"({"model_type": "granite", "attention_bias": false, "hidden_size": 4096, "intermediate_size": 12800,
         "max_position_embeddings": 4096, "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 40,
         "num_key_value_heads": 8, "vocab_size": 49155, "tie_word_embeddings": true})",
     8'170'848'256},
    // Granite-3.0-3B-A800M
    {R"({"model_type": "granitemoe", "attention_bias": false, "hidden_size": 1536, "intermediate_size": 512,
         "max_position_embeddings": 4096, "num_attention_heads": 24, "num_experts_per_tok": 8, "num_hidden_layers": 32,
         "num_key_value_heads": 8, "num_local_experts": 40, "vocab_size": 49155, "tie_word_embeddings": true})",
     3'298'793'472},
    // Command-R
    {R"({"model_type": "cohere", "attention_bias": false, "hidden_size": 8192, "intermediate_size": 22528,
         "max_position_embeddings": 8192, "num_attention_heads": 64, "num_hidden_layers": 40, "num_key_value_heads": 64,
         "use_qk_norm": false, "vocab_size": 256000})",
     34'980'831'232},
    // Command-R-plus
    {R"({"model_type": "cohere", "attention_bias": false, "hidden_size": 12288, "intermediate_size": 33792,
         "max_position_embeddings": 8192, "num_attention_heads": 96, "num_hidden_layers": 64, "num_key_value_heads": 8,
         "use_qk_norm": true, "vocab_size": 256000})",
     103'810'674'688},
    // Command-R7B
    {R"({"model_type": "cohere2", "attention_bias": false, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 14336,
         "max_position_embeddings": 8192, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
         "sliding_window": 4096, "sliding_window_pattern": 4, "vocab_size": 256000})",
     8'028'033'024},
    // Minitron-4B
    {R"({"model_type": "nemotron", "attention_bias": false, "head_dim": 128, "hidden_act": "relu2", "hidden_size": 3072,
         "intermediate_size": 9216, "max_position_embeddings": 4096, "mlp_bias": false, "num_attention_heads": 24,
         "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 256000, "tie_word_embeddings": false})",
     4'190'509'056},
    // Nemotron-4-340B
    {R"({"model_type": "nemotron", "attention_bias": false, "head_dim": 192, "hidden_act": "relu2", "hidden_size": 18432,
         "intermediate_size": 73728, "max_position_embeddings": 4096, "mlp_bias": false, "num_attention_heads": 96,
         "num_hidden_layers": 96, "num_key_value_heads": 8, "vocab_size": 256000, "tie_word_embeddings": false})",
     341'029'195'776},
    // Gemma-3-27B
    {R"({"model_type": "gemma3", "text_config": {"head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
         "model_type": "gemma3_text", "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16,
         "sliding_window": 1024}, "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"}, "torch_dtype":
         "bfloat16"})",
     27'009'346'304},
    // Gemma-3-4B
    {R"({"model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
         "num_hidden_layers": 34, "sliding_window": 1024}, "vision_config": {"hidden_size": 1152, "model_type":
         "siglip_vision_model"}, "torch_dtype": "bfloat16"})",
     3'880'263'168},
    // Llama-4-Scout
    {R"({"model_type": "llama4", "text_config": {"attention_bias": false, "attention_chunk_size": 8192, "head_dim": 128,
         "hidden_size": 5120, "interleave_moe_layer_step": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
         "max_position_embeddings": 10485760, "model_type": "llama4_text", "num_attention_heads": 40, "num_experts_per_tok": 1,
         "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16, "use_qk_norm": true, "vocab_size": 202048}, "vision_config":
         {"model_type": "llama4_vision_model"}, "torch_dtype": "bfloat16"})",
     107'769'861'120},
    // Llama-4-Maverick
    {R"({"model_type": "llama4", "text_config": {"attention_bias": false, "attention_chunk_size": 8192, "head_dim": 128,
         "hidden_size": 5120, "interleave_moe_layer_step": 2, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
         "max_position_embeddings": 1048576, "model_type": "llama4_text", "num_attention_heads": 40, "num_experts_per_tok": 1,
         "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 128, "use_qk_norm": false, "vocab_size": 202048}, "vision_config":
         {"model_type": "llama4_vision_model"}, "torch_dtype": "bfloat16"})",
     400'711'848'960},
    // Kimi-K2
    {R"({"model_type": "kimi_k2", "attention_bias": false, "first_k_dense_replace": 1, "hidden_size": 7168,
         "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 131072, "moe_intermediate_size": 2048,
         "moe_layer_freq": 1, "n_routed_experts": 384, "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok":
         8, "num_hidden_layers": 61, "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "q_lora_rank": 1536,
         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840, "tie_word_embeddings":
         false})",
     1'026'408'232'448},
    // BLOOM
    {R"({"model_type": "bloom", "n_embed": 14336, "num_attention_heads": 112, "n_layer": 70, "seq_length": 2048, "vocab_size":
         250880})",
     176'247'271'424},
    // InternLM2-7B
    {R"({"model_type": "internlm2", "bias": false, "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings":
         32768, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 92544,
         "tie_word_embeddings": false})",
     7'737'708'544},
    // MiniCPM-2B
    {R"({"model_type": "minicpm", "hidden_size": 2304, "intermediate_size": 5760, "max_position_embeddings": 2048,
         "num_attention_heads": 36, "num_hidden_layers": 40, "num_key_value_heads": 36, "vocab_size": 122753})",
     2'724'880'896},
    // MiniCPM3-4B
    {R"({"model_type": "minicpm3", "attention_bias": false, "hidden_size": 2560, "intermediate_size": 6400, "kv_lora_rank":
         256, "max_position_embeddings": 32768, "num_attention_heads": 40, "num_hidden_layers": 62, "num_key_value_heads": 40,
         "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "vocab_size": 73448})",
     4'073'875'968},
    // MPT-7B
    {R"({"model_type": "mpt", "attn_config": {"alibi": true, "attn_type": "multihead_attention"}, "d_model": 4096,
         "expansion_ratio": 4, "learned_pos_emb": true, "max_seq_len": 2048, "n_heads": 32, "n_layers": 32, "no_bias": true,
         "vocab_size": 50432})",
     6'649'286'656},
    // DBRX
    {R"({"model_type": "dbrx", "attn_config": {"kv_n_heads": 8, "rope_theta": 500000}, "d_model": 6144, "ffn_config":
         {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}, "max_seq_len": 32768, "n_heads": 48, "n_layers":
         40, "vocab_size": 100352, "tie_word_embeddings": false})",
     131'596'523'520},
    // StableLM-2-1.6B
    {R"({"model_type": "stablelm", "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 4096,
         "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": 32, "qk_layernorm": false,
         "use_parallel_residual": false, "use_qkv_bias": true, "vocab_size": 100352, "tie_word_embeddings": false})",
     1'644'515'328},
    // Phi-2
    {R"({"model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "max_position_embeddings": 2048,
         "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "qk_layernorm": false, "vocab_size":
         51200, "tie_word_embeddings": false})",
     2'779'683'840},
    // Phi-3.5-MoE
    {R"({"model_type": "phimoe", "attention_bias": true, "hidden_size": 4096, "intermediate_size": 6400, "lm_head_bias": true,
         "max_position_embeddings": 131072, "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
         "num_key_value_heads": 8, "num_local_experts": 16, "sliding_window": 131072, "vocab_size": 32064,
         "tie_word_embeddings": false})",
     41'873'153'344},
    // GPT-J-6B
    {R"({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_inner": null, "n_layer": 28, "n_positions": 2048,
         "rotary_dim": 64, "vocab_size": 50400, "tie_word_embeddings": false})",
     6'050'882'784},
    // GPT-Neo-2.7B
    {R"({"model_type": "gpt_neo", "hidden_size": 2560, "intermediate_size": null, "max_position_embeddings": 2048,
         "num_heads": 20, "num_layers": 32, "attention_types": [[["global", "local"], 16]], "window_size": 256, "vocab_size":
         50257})",
     2'651'307'520},
    // StarCoder
    {R"({"model_type": "gpt_bigcode", "multi_query": true, "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 40,
         "n_positions": 8192, "vocab_size": 49152})",
     15'517'456'384},
    // OPT-350M
    {R"({"model_type": "opt", "do_layer_norm_before": false, "ffn_dim": 4096, "hidden_size": 1024, "max_position_embeddings":
         2048, "num_attention_heads": 16, "num_hidden_layers": 24, "vocab_size": 50272, "word_embed_proj_dim": 512})",
     331'196'416},
    // EXAONE-4.0-1.2B
    {R"({"model_type": "exaone4", "head_dim": 64, "hidden_size": 2048, "intermediate_size": 4096, "max_position_embeddings":
         65536, "num_attention_heads": 32, "num_hidden_layers": 30, "num_key_value_heads": 8, "sliding_window": null,
         "sliding_window_pattern": null, "vocab_size": 102400, "tie_word_embeddings": true})",
     1'279'391'488},
    // Seed-OSS-36B
    {R"({"model_type": "seed_oss", "attention_bias": true, "attention_out_bias": false, "head_dim": 128, "hidden_size": 5120,
         "intermediate_size": 27648, "max_position_embeddings": 524288, "mlp_bias": false, "num_attention_heads": 80,
         "num_hidden_layers": 64, "num_key_value_heads": 8, "vocab_size": 155136, "tie_word_embeddings": false})",
     36'151'104'512},
    // ERNIE-4.5-21B-A3B
    {R"({"model_type": "ernie4_5_moe", "hidden_size": 2560, "intermediate_size": 12288, "max_position_embeddings": 131072,
         "moe_intermediate_size": 1536, "moe_k": 6, "moe_layer_interval": 1, "moe_layer_start_index": 1, "moe_num_experts": 64,
         "moe_num_shared_experts": 2, "num_attention_heads": 20, "num_hidden_layers": 28, "num_key_value_heads": 4, "use_bias":
         false, "vocab_size": 103424, "tie_word_embeddings": true})",
     21'825'437'888},
    // DistilBERT
    {R"({"model_type": "distilbert", "dim": 768, "hidden_dim": 3072, "max_position_embeddings": 512, "n_heads": 12, "n_layers": 6,
         "sinusoidal_pos_embds": false, "vocab_size": 30522})",
     66'985'530},
    // RoBERTa-base
    {R"({"model_type": "roberta", "hidden_size": 768, "intermediate_size": 3072, "max_position_embeddings": 514,
         "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 1, "vocab_size": 50265})",
     124'697'433},
    // Mistral-Small-3.1
    {R"({"model_type": "mistral3", "text_config": {"head_dim": 128, "hidden_size": 5120, "intermediate_size": 32768,
         "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40,
         "num_key_value_heads": 8, "sliding_window": null, "vocab_size": 131072}, "vision_config": {"model_type": "pixtral"},
         "torch_dtype": "bfloat16"})",
     23'572'403'200},
    // LLaVA-1.5-7B
    {R"({"model_type": "llava", "text_config": {"max_position_embeddings": 4096, "model_type": "llama", "vocab_size": 32064,
         "torch_dtype": "float16"}, "vision_config": {"model_type": "clip_vision_model"}, "tie_word_embeddings": false})",
     6'738'939'904},
    // Qwen2-VL-7B
    {R"({"model_type": "qwen2_vl", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 32768,
         "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "use_sliding_window": false,
         "sliding_window": 32768, "max_window_layers": 28, "vocab_size": 152064, "tie_word_embeddings": false, "vision_config":
         {"depth": 32, "embed_dim": 1280}})",
     7'615'616'512},
    // AFM-4.5B
    {R"({"model_type": "arcee", "attention_bias": false, "head_dim": 128, "hidden_act": "relu2", "hidden_size": 2560,
         "intermediate_size": 18432, "max_position_embeddings": 65536, "mlp_bias": false, "num_attention_heads": 20,
         "num_hidden_layers": 36, "num_key_value_heads": 4, "vocab_size": 128004, "tie_word_embeddings": false})",
     4'619'184'640},
    // dots.llm1
    {R"({"model_type": "dots1", "attention_bias": false, "first_k_dense_replace": 1, "head_dim": 128, "hidden_size": 4096,
         "intermediate_size": 10944, "max_position_embeddings": 32768, "moe_intermediate_size": 1408, "n_routed_experts": 128,
         "n_shared_experts": 2, "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 62,
         "num_key_value_heads": 32, "vocab_size": 152064, "tie_word_embeddings": false, "sliding_window": null})",
     142'774'381'696},
    // MiniMax-M2
    {R"({"model_type": "minimax_m2", "head_dim": 128, "hidden_size": 3072, "intermediate_size": 1536,
         "max_position_embeddings": 196608, "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62,
         "num_key_value_heads": 8, "num_local_experts": 256, "use_qk_norm": true, "use_routing_bias": true, "vocab_size":
         200064, "tie_word_embeddings": false, "num_mtp_modules": 3})",
     228'689'764'864},
    // Hunyuan-7B
    {R"({"model_type": "hunyuan_v1_dense", "attention_bias": false, "head_dim": 128, "hidden_size": 4096, "intermediate_size":
         14336, "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
         "use_qk_norm": true, "vocab_size": 128167, "tie_word_embeddings": true})",
     7'504'568'320},
    // Qwen2.5-7B
    {R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072,
         "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
         "sliding_window": 131072, "use_sliding_window": false, "vocab_size": 152064, "tie_word_embeddings": false})",
     7'615'616'512},
    // Olmo-3-7B
    {R"({"model_type": "olmo3", "attention_bias": false, "hidden_size": 4096, "intermediate_size": 11008, "layer_types":
         ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
         "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
         "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
         "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
         "sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
         "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
         "sliding_attention", "full_attention"], "max_position_embeddings": 65536, "num_attention_heads": 32,
         "num_hidden_layers": 32, "num_key_value_heads": 32, "sliding_window": 4096, "vocab_size": 100278,
         "tie_word_embeddings": false})",
     7'298'011'136},
    // Helium-1-2B
    {R"({"model_type": "helium", "attention_bias": false, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 8192,
         "max_position_embeddings": 4096, "mlp_bias": false, "num_attention_heads": 16, "num_hidden_layers": 28,
         "num_key_value_heads": 8, "vocab_size": 64000, "tie_word_embeddings": true})",
     1'892'796'416},
    // ChatGLM3-6B
    {R"({"model_type": "chatglm", "add_bias_linear": false, "add_qkv_bias": true, "ffn_hidden_size": 13696, "hidden_size":
         4096, "kv_channels": 128, "multi_query_attention": true, "multi_query_group_num": 2, "num_attention_heads": 32,
         "num_layers": 28, "padded_vocab_size": 65024, "rmsnorm": true, "seq_length": 8192, "tie_word_embeddings": false})",
     6'243'584'000},
    // Qwen-7B
    {R"({"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128, "max_position_embeddings":
         8192, "no_bias": true, "num_attention_heads": 32, "num_hidden_layers": 32, "seq_length": 8192, "vocab_size": 151936,
         "tie_word_embeddings": false})",
     7'721'324'544},
    // Baichuan2-7B
    {R"({"model_type": "baichuan", "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096,
         "model_max_length": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 125696,
         "tie_word_embeddings": false})",
     7'505'973'248},
    // EXAONE-3.5-7.8B
    {R"({"model_type": "exaone", "activation_function": "silu", "head_dim": 128, "hidden_size": 4096, "intermediate_size":
         14336, "max_position_embeddings": 32768, "num_attention_heads": 32, "num_key_value_heads": 8, "num_layers": 32,
         "vocab_size": 102400, "tie_word_embeddings": false})",
     7'818'448'896},
    // DeepSeek-MoE-16B
    {R"({"model_type": "deepseek", "attention_bias": false, "first_k_dense_replace": 1, "hidden_size": 2048,
         "intermediate_size": 10944, "max_position_embeddings": 4096, "moe_intermediate_size": 1408, "moe_layer_freq": 1,
         "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6,
         "num_hidden_layers": 28, "num_key_value_heads": 16, "vocab_size": 102400, "tie_word_embeddings": false})",
     16'375'728'128},
    // biogpt, its class's own sizes
    {R"({"model_type": "biogpt", "num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size":
         4096, "vocab_size": 42384, "max_position_embeddings": 1024, "tie_word_embeddings": true})",
     346'763'264},
    // codegen, its class's own sizes
    {R"({"model_type": "codegen", "n_layer": 28, "n_embd": 4096, "n_head": 16, "vocab_size": 50400, "n_positions": 2048,
         "n_ctx": 2048, "tie_word_embeddings": false})",
     6'050'882'784},
    // ernie, its class's own sizes
    {R"({"model_type": "ernie", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size":
         3072, "vocab_size": 30522, "max_position_embeddings": 512, "tie_word_embeddings": true, "type_vocab_size": 2})",
     109'514'298},
    // ernie4_5, its class's own sizes
    {R"({"model_type": "ernie4_5", "num_hidden_layers": 18, "hidden_size": 1024, "num_attention_heads": 16,
         "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 103424, "max_position_embeddings":
         131072, "use_bias": false, "tie_word_embeddings": true})",
     360'748'032},
    // glm4_moe_lite, its class's own sizes
    {R"({"model_type": "glm4_moe_lite", "num_hidden_layers": 47, "hidden_size": 2048, "num_attention_heads": 20,
         "num_key_value_heads": 20, "intermediate_size": 10240, "vocab_size": 154880, "max_position_embeddings": 202752,
         "attention_bias": false, "tie_word_embeddings": false, "n_routed_experts": 64, "num_experts_per_tok": 4,
         "moe_intermediate_size": 1536, "n_shared_experts": 1, "mlp_layer_types": ["dense"], "kv_lora_rank": 512,
         "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256})",
     29'943'393'920},
    // gpt-sw3, its class's own sizes
    {R"({"model_type": "gpt-sw3", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024,
         "tie_word_embeddings": true})",
     124'439'808},
    // openai-gpt, its class's own sizes
    {R"({"model_type": "openai-gpt", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 40478, "n_positions": 512,
         "tie_word_embeddings": true})",
     116'534'784},
    // xglm, its class's own sizes
    {R"({"model_type": "xglm", "num_layers": 24, "d_model": 1024, "attention_heads": 16, "ffn_dim": 4096, "vocab_size":
         256008, "max_position_embeddings": 2048, "tie_word_embeddings": true})",
     564'463'616},
};

}  // namespace

// The counts of others leave out what predicts further tokens.
std::string without_further_tokens(std::string config) {
  for (const std::string key : {"\"num_nextn_predict_layers\": ", "\"num_mtp_modules\": "})
    if (const auto at = config.find(key); at != std::string::npos) config[at + key.size()] = '0';
  return config;
}

TEST_CASE("Hugging Face configs give the published parameter counts") {
  for (const auto& m : models) {
    CAPTURE(m.config);
    const auto text = without_further_tokens(m.config);
    const auto block = parse_model(text, "config.json", {.cut = granularity::block, .sequence = 512});
    CHECK(static_cast<double>(parameter_count(block.chain)) == m.parameters);
    const auto fine = parse_model(text, "config.json", {.cut = granularity::sublayer, .sequence = 512});
    CHECK(parameter_count(fine.chain) == parameter_count(block.chain));
    CHECK(training_flops(fine.chain) == doctest::Approx(training_flops(block.chain)));
    CHECK(fine.chain.size() == 3 * (block.chain.size() - 2) + 2);
  }
  CHECK(parse_model(models[2].config, "config.json", {.sequence = 64}).precision == precision::bf16);
}

TEST_CASE("blocks of a config that predict further tokens stand at the head, and are told") {
  const auto deepseek = std::find_if(std::begin(models), std::end(models), [](const auto& m) {
    return std::string(m.config).find("deepseek_v3") != std::string::npos;
  });
  REQUIRE(deepseek != std::end(models));
  const auto read = parse_model(deepseek->config, "config.json", {.cut = granularity::block, .sequence = 512});
  REQUIRE(read.family);
  CHECK(read.family->further_tokens == 1);
  CHECK(read.chain.size() == 61 + 2);
  // The shapes of its checkpoint's layer 61, corrections of the router included, but for embedding and output, which are the
  // model's; DeepSeek-V3's README_WEIGHTS tells 11.5 billion.
  const double latent = 7168 * 1536 + 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168;
  const double experts = 257.0 * 3 * 7168 * 2048 + 256 * 7168 + 256, joined = 2.0 * 7168 * 7168, norms = 5 * 7168;
  CHECK(static_cast<double>(parameter_count(read.chain)) - deepseek->parameters == latent + experts + joined + norms);
  REQUIRE(read.remarks.size() == 1);
  CHECK(read.remarks[0] ==
        "with the blocks that predict further tokens (1); for trainers that have none, as transformers' models, say 0 of them");
  CHECK(parse_model(without_further_tokens(deepseek->config), "config.json").remarks.empty());
}

TEST_CASE("wrong configs are refused with their place") {
  const std::string config = models[1].config;
  const documents::kind kind{"model", config, [](std::string_view text) { (void)parse_model(text, "x.json"); }};
  documents::refuses(kind, documents::with(config, "\"llama\"", "\"falcon_mamba\""), "/model_type", "state-space blocks");
  documents::refuses(kind, documents::with(config, "\"hidden_size\": 4096", "\"hidden_size\": \"big\""), "/hidden_size",
                     "found \"big\"");
  documents::refuses(kind, documents::with(config, "\"hidden_size\": 4096, ", ""), "/hidden_size", "missing");
  documents::refuses(kind, documents::with(config, "\"hidden_size\": 4096", "\"hidden_size\": 4097"), "",
                     "hidden must be divisible by heads");
  documents::refuses(kind, documents::with(config, "\"float16\"", "\"int8\""), "/torch_dtype", "found \"int8\"");
}

TEST_CASE("what is no model says so: an adapter, a pipeline of images") {
  for (const char* text : {R"({"peft_type": "LORA", "r": 16})", R"({"_class_name": "UNet2DConditionModel", "sample_size": 64})"})
    CHECK_THROWS_WITH_AS((void)parse_model(text, "config.json"), doctest::Contains("config.json: is neither a model.json"),
                         file_error);
}

TEST_CASE("a config of an unknown model_type is read by its keys, and what was guessed is said") {
  const std::string known = models[1].config;
  const auto other =
      parse_model(documents::with(known, "\"llama\"", "\"camel\", \"rms_norm_eps\": 1e-5"), "x.json", {.sequence = 512});
  CHECK(other.chain == parse_model(known, "x.json", {.sequence = 512}).chain);
  REQUIRE(other.remarks.size() == 1);
  CHECK(other.remarks[0] ==
        "model_type \"camel\" is not known; taken from the keys: 32 blocks of 4096, 32 heads (32 of keys), MLP of 11008, 32000 "
        "words, 512 tokens; guessed: RMS norms before attention and MLP, a gated MLP, rotary positions, no biases");
  CHECK(parse_model(known, "x.json", {.sequence = 512}).remarks.empty());

  const auto bare = parse_model(
      R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "layer_norm_eps": 1e-5,
          "hidden_act": "gelu", "max_position_embeddings": 128, "position_embedding_type": "absolute"})",
      "x.json");
  CHECK(bare.chain == make_chain(
                          [] {
                            auto m = gpt({.layers = 2, .hidden = 64, .heads = 4, .vocab = 100, .sequence = 128});
                            m.dropout = false;
                            return m;
                          }(),
                          granularity::sublayer));
  REQUIRE(bare.remarks.size() == 1);
  CHECK(bare.remarks[0].find("there is no model_type") == 0);
  CHECK(bare.remarks[0].find("biases everywhere, the output matrix is the embedding") != std::string::npos);
}

TEST_CASE("configs of models that are no transformers of equal blocks are refused for what they are") {
  const std::string config = models[1].config;
  const documents::kind kind{"model", config, [](std::string_view text) { (void)parse_model(text, "x.json"); }};
  const auto with_key = [&](const std::string& key) { return documents::with(config, "\"llama\"", "\"llama\", " + key); };
  documents::refuses(kind, with_key("\"is_encoder_decoder\": true"), "/is_encoder_decoder", "an encoder beside the decoder");
  documents::refuses(kind, with_key("\"mamba_d_state\": 16"), "/mamba_d_state", "state-space blocks");
  documents::refuses(kind, with_key("\"linear_key_head_dim\": 128"), "/linear_key_head_dim", "linear attention");
  documents::refuses(kind, with_key("\"layer_types\": [\"full_attention\", \"linear_attention\"]"), "/layer_types/1",
                     "expected full_attention, sliding_attention or chunked_attention");
  documents::refuses(kind, with_key("\"expansion_ratio\": 16777216"), "/expansion_ratio", "at most 4096");
  documents::refuses(kind, with_key("\"num_local_experts\": 4"), "/num_experts_per_tok", "missing");
  documents::refuses(kind, with_key("\"num_local_experts\": 4, \"num_experts_per_tok\": 2, \"mlp_only_layers\": [3]"),
                     "/mlp_only_layers/0", "the first blocks");
  documents::refuses(kind, with_key("\"hidden_size_per_layer_input\": 256, \"layer_types\": [\"full_attention\"]"),
                     "/hidden_size_per_layer_input", "an embedding for each block");
  documents::refuses(kind, with_key("\"time_step_limit\": [0.0, Infinity], \"mamba_d_conv\": 4, \"a\": \"\\\"NaN\""),
                     "/mamba_d_conv", "state-space blocks");
  // Granite 4's blocks may all have attention, beside sizes that others would have.
  CHECK_NOTHROW((void)parse_model(with_key("\"mamba_d_state\": 16, \"layer_types\": [\"attention\", \"attention\"]"), "x.json",
                                  {.sequence = 64}));
  documents::refuses(kind,
                     with_key("\"num_local_experts\": 4, \"num_experts_per_tok\": 2, \"mlp_layer_types\": [\"sparse\", "
                              "\"dense\"]"),
                     "/mlp_layer_types/1", "as dense blocks are the first");
  CHECK_NOTHROW((void)parse_model(with_key("\"is_encoder_decoder\": false, \"use_cla\": null"), "x.json", {.sequence = 64}));
}

TEST_CASE("more tokens than learned positions are refused, and rotary positions have no end") {
  const std::string bert = models[5].config;
  const documents::kind kind{"model", bert, [](std::string_view t) { (void)parse_model(t, "x.json", {.sequence = 4096}); }};
  documents::refuses(kind, bert, "", "found 512 learned positions, expected at least the 4096 tokens");
  CHECK(parse_model(bert, "x.json", {.sequence = 512}).chain.sequence == 512);
  CHECK(parse_model(models[1].config, "x.json", {.sequence = 8192}).chain.sequence == 8192);
  const std::string own = R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 2, "hidden": 64, "heads": 4,
      "vocab": 1000, "sequence": 128, "positions": 256}})";
  documents::refuses(kind, own, "/transformer/positions", "found 256, expected 0, or at least the 4096 tokens");
  CHECK(parse_model(own, "x.json", {.sequence = 256}).family->positions == 256);
}

TEST_CASE("a vision transformer has as many classes as have names") {
  std::string names;
  for (int i = 0; i < 1000; ++i) names += (i ? ", \"" : "\"") + std::to_string(i) + "\": \"x\"";
  const std::string vit = R"({"model_type": "vit", "hidden_size": 768, "image_size": 224, "intermediate_size": 3072,
      "num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 12, "patch_size": 16, "qkv_bias": true, "id2label": {)" +
                          names + "}}";
  CHECK(parameter_count(parse_model(vit, "x.json").chain) == 86'567'656);  // ViT-B/16
  const documents::kind kind{"model", vit, [](std::string_view text) { (void)parse_model(text, "x.json"); }};
  documents::refuses(kind, documents::with(vit, "\"image_size\": 224", "\"image_size\": 220"), "", "a whole number of patches");
}

TEST_CASE("windows of attention: where they are said, and which blocks have none") {
  const auto family = [](const std::string& type, const std::string& keys, int sequence = 4096) {
    return *parse_model(R"({"hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 8192, "model_type": ")" +
                            type + "\"" + (keys.empty() ? "" : ", " + keys) + "}",
                        "x.json", {.sequence = sequence})
                .family;
  };
  CHECK(family("mistral", "").window == 0);
  CHECK(family("mistral", "\"sliding_window\": null").window == 0);
  CHECK(family("mistral", "\"sliding_window\": 1024").window == 1024);
  CHECK(family("mistral", "\"sliding_window\": 1024").full_every == 0);
  CHECK(family("gemma2", "").window == 4096);
  CHECK(family("gemma2", "").full_every == 2);
  CHECK(family("gemma3_text", "\"sliding_window\": 512, \"sliding_window_pattern\": 6").full_every == 6);
  CHECK(family("qwen2", "\"sliding_window\": 512, \"use_sliding_window\": false").window == 0);
  CHECK(family("qwen2", "\"sliding_window\": 512").window == 0);
  CHECK(family("qwen2", "\"sliding_window\": 512, \"use_sliding_window\": true, \"max_window_layers\": 0").window == 512);
  CHECK(family("exaone4", "\"sliding_window\": 512, \"sliding_window_pattern\": \"LLLG\"").full_every == 4);
  const std::string three = "\"sliding_attention\", \"sliding_attention\", \"full_attention\"";
  const auto listed =
      family("olmo3", "\"sliding_window\": 512, \"layer_types\": [" + three + ", " + three + ", " + three + ", " + three + "]");
  CHECK(listed.window == 512);
  CHECK(listed.full_every == 3);
  const auto unlike =
      parse_model(R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
      "vocab_size": 100, "max_position_embeddings": 8192, "model_type": "mistral", "sliding_window": 512,
      "layer_types": ["full_attention", "sliding_attention"]})",
                  "x.json");
  CHECK(unlike.family->window == 0);
  REQUIRE(unlike.remarks.size() == 1);
  CHECK(unlike.remarks[0].find("windows of attention") == 0);
}

TEST_CASE("a text model inside another: its keys, and around it precision, tie and bits") {
  const auto read = parse_model(R"({"model_type": "llava", "torch_dtype": "bfloat16", "tie_word_embeddings": true,
      "quantization_config": {"bits": 4}, "text_config": {"model_type": "llama"}, "vision_config": {}})",
                                "x.json", {.sequence = 64});
  CHECK(read.precision == precision::bf16);
  CHECK(read.weight_bits == 4);
  CHECK(parameter_count(read.chain) == 6'738'415'616 - 32000 * 4096);
  REQUIRE(read.remarks.size() == 1);
  CHECK(read.remarks[0] == "of the model only text_config is priced, without vision_config");
  const std::string wrong = R"({"text_config": {"model_type": "llama", "hidden_size": "big"}})";
  const documents::kind kind{"model", wrong, [](std::string_view text) { (void)parse_model(text, "x.json"); }};
  documents::refuses(kind, wrong, "/text_config/hidden_size", "found \"big\"");
}

TEST_CASE("a config.json's quantization_config: bits of weights, and what engines multiply in") {
  const auto of = [](const std::string& quantized) {
    const auto read = parse_model(R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
      "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 64, "quantization_config": )" +
                                      quantized + "}",
                                  "x.json");
    return std::pair(read.weight_bits, read.products);
  };
  const auto compressed = [&](const std::string& weights, const std::string& inputs) {
    return of(R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": )" + weights +
              R"(, "input_activations": )" + inputs + "}}}");
  };
  const std::optional<number_format> none, fp8 = number_format::fp8, int8 = number_format::int8;
  CHECK(of(R"({"quant_method": "fp8", "activation_scheme": "dynamic"})") == std::pair(8.0, fp8));
  CHECK(of(R"({"quant_method": "gptq", "bits": 4, "group_size": 128})") == std::pair(4.15625, none));
  CHECK(compressed(R"({"num_bits": 8, "type": "int"})", R"({"num_bits": 8, "type": "int"})") == std::pair(8.0, int8));
  CHECK(compressed(R"({"num_bits": 8, "type": "float"})", R"({"num_bits": 8, "type": "float"})") == std::pair(8.0, fp8));
  CHECK(compressed(R"({"num_bits": 4, "type": "int", "group_size": 128})", "null") == std::pair(4.15625, none));
  CHECK(compressed(R"({"num_bits": 8, "type": null})", R"({"num_bits": 8, "type": null})") == std::pair(8.0, int8));
  CHECK(compressed(R"({"type": "float"})", R"({"type": "float", "num_bits": null})") == std::pair(0.0, none));
  // Products in 8 bits go with 16 otherwise.
  for (const auto& [wide, products] : {std::pair{precision::bf16, fp8}, {precision::fp32, none}, {precision::tf32, none}})
    CHECK(parse_model(R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
      "intermediate_size": 128, "vocab_size": 100, "quantization_config": {"quant_method": "fp8"}})",
                      "x.json", {.sequence = 64, .dtype = wide})
              .products == products);
}

TEST_CASE("a transformer by its features is what a config of such features is") {
  const auto own = [](const std::string& keys) {
    return parse_model(R"({"format": "hetsched/model", "version": 1, "transformer": {)" + keys + "}}", "x.json",
                       {.cut = granularity::block, .sequence = 512});
  };
  const std::string modern = R"("norm": "rms", "gated": true, "biases": [], "tie": false, )";
  const auto same = [&](std::string_view config, const std::string& keys) {
    const auto of_config =
        parse_model(without_further_tokens(std::string(config)), "config.json", {.cut = granularity::block, .sequence = 512});
    const auto of_keys = own(keys);
    CHECK(of_keys.family == of_config.family);
    CHECK(of_keys.chain == of_config.chain);
  };
  const auto config_with = [](const std::string& part) {
    const auto* found = std::find_if(std::begin(models), std::end(models), [&](const published& m) {
      return std::string_view(m.config).find(part) != std::string_view::npos;
    });
    REQUIRE(found != std::end(models));
    return found->config;
  };
  // Qwen3-235B-A22B, gpt-oss-20b, OLMo-2-7B, Llama-4-Scout's kin are said by keys alone
  same(config_with("\"num_hidden_layers\": 94"),
       modern + R"("layers": 94, "hidden": 4096, "heads": 64, "kv_heads": 4, "head_dim": 128,
      "qk_norm": true, "ffn_hidden": 12288, "moe_ffn_hidden": 1536, "experts": 128, "experts_per_token": 8, "vocab": 151936,
      "sequence": 40960)");
  same(config_with("\"gpt_oss\""),
       documents::with(modern, "[]", "true") + R"("layers": 24, "hidden": 2880, "heads": 64, "kv_heads": 8, "head_dim": 64,
      "ffn_hidden": 2880, "experts": 32, "experts_per_token": 4, "expert_bias": true, "attention_sinks": true, "window": 128,
      "full_every": 2, "vocab": 201088, "sequence": 131072)");
  same(config_with("\"olmo2\""), modern + R"("layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "qk_norm": "whole",
      "norm_before": false, "norm_after": true, "ffn_hidden": 11008, "vocab": 100352, "sequence": 4096)");
  same(config_with("\"deepseek_v3\""), modern + R"("layers": 61, "hidden": 7168, "heads": 128, "head_dim": 192, "kv_rank": 512,
      "query_rank": 1536, "rotary_dim": 64, "value_dim": 128, "ffn_hidden": 18432, "moe_ffn_hidden": 2048, "experts": 256,
      "experts_per_token": 8, "shared_experts": 1, "dense_blocks": 3, "expert_bias": true, "vocab": 129280, "sequence": 4096)");
  same(config_with("\"starcoder2\""),
       R"("dropout": false, "positions": 0, "layers": 30, "hidden": 3072, "heads": 24, "kv_heads": 2,
      "ffn_hidden": 12288, "window": 4096, "vocab": 49152, "sequence": 4096)");
  same(config_with("\"phi\""), R"("dropout": false, "positions": 0, "layers": 32, "hidden": 2560, "heads": 32, "kv_heads": 32,
      "ffn_hidden": 10240, "tie": false, "shared_norm": true, "biases": ["qkv", "output", "mlp", "head"], "vocab": 51200,
      "sequence": 2048)");

  // Norms of RMS come with rotary positions and without dropout, unless something else is said.
  const std::string few = R"("layers": 2, "hidden": 64, "heads": 4, "vocab": 1000, "sequence": 512, "norm": )";
  CHECK(own(few + R"("rmsnorm")").family->positions == 0);
  CHECK_FALSE(own(few + R"("rms")").family->dropout);
  CHECK(own(few + R"("rms", "positions": 512, "dropout": true)").family->positions == 512);
  CHECK(own(few + R"("rms", "positions": 512, "dropout": true)").family->dropout);
  CHECK(own(few + R"("layer_without_bias")").family->positions == 512);
  CHECK(own(few + R"("bare")").family->norm_vectors == 0);

  const std::string whole = R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 2, "hidden": 64, "heads": 4,
      "vocab": 1000, "sequence": 128, "norm": "rms", "qk_norm": false, "biases": ["qkv"]}})";
  const documents::kind kind{"model", whole, [](std::string_view text) { (void)parse_model(text, "x.json"); }};
  documents::refuses(kind, documents::with(whole, "\"rms\"", "\"batch\""), "/transformer/norm", "one of layer, rms");
  documents::refuses(kind, documents::with(whole, "[\"qkv\"]", "[\"kv\"]"), "/transformer/biases/0",
                     "one of qkv, output, mlp, head");
  documents::refuses(kind, documents::with(whole, "\"qk_norm\": false", "\"qk_norm\": \"half\""), "/transformer/qk_norm",
                     "true, false, per_head or whole");
  documents::refuses(kind, documents::with(whole, "\"norm\"", "\"norms\""), "/transformer/norms", "did you mean");
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

TEST_CASE("config.json: sizes in lists are sizes, and parts that are not priced are told") {
  const auto complaint = [](const char* text) {
    try {
      (void)parse_model(text, "config.json");
    } catch (const file_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(complaint(R"({"model_type": "mpt", "d_model": [0], "n_layers": 2, "n_heads": 32, "vocab_size": 50432, "max_seq_len": 2048,
    "expansion_ratio": 4})")
            .find("/d_model: ") != std::string::npos);
  CHECK(complaint(R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 2,
    "num_attention_heads": [0], "vocab_size": 32000, "max_position_embeddings": 4096, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128})")
            .find("/num_attention_heads: ") != std::string::npos);
  const auto seeing = parse_model(R"({"model_type": "qwen2_vl", "hidden_size": 1536, "intermediate_size": 8960,
    "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
    "max_position_embeddings": 32768, "tie_word_embeddings": true, "vision_config": {"depth": 32}})",
                                  "config.json");
  REQUIRE(seeing.remarks.size() == 1);
  CHECK(seeing.remarks[0] == "without vision_config");
}
