// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/cost/models/training_stack.hpp>

namespace hetsched {

HETSCHED_INLINE void validate(const training_stack& s) {
  if (s.name.empty()) throw input_error("a stack needs a name");
  for (const auto* m : {&s.bf16, &s.fp16, &s.fp32}) validate(*m);
  validate(s.activations);
  validate(s.overheads);
  for (const double share : {s.gather_overlap, s.reduction_overlap, s.update_overlap})
    if (!(share >= 0 && share <= 1)) throw input_error("overlaps must be shares, 0 to 1");
  if (!(s.update_bandwidth > 0 && s.update_bandwidth <= 1))
    throw input_error("update_bandwidth must be a share above 0, up to 1");
  if (!(s.host_launch_s >= 0 && std::isfinite(s.host_launch_s)))
    throw input_error("host_launch_s must be finite and not negative");
  if (static_cast<std::size_t>(s.sends) >= send_modes.size()) throw input_error("there is no such way to send");
}

HETSCHED_INLINE const std::vector<training_stack>& training_stacks() {
  static const std::vector<training_stack> all = [] {
    constexpr double several_precisions = 3;  // of the logits
    // PyTorch 2.11 beside one H100, bench/validation/torch_iterations.py: models whose samples are few take 20 to 30 us a kernel
    // of those counted here, and half as much again beside one H200: the host's frequency and the program around it matter.
    constexpr double eager_launch_s = 20e-6;
    constexpr int fp32_sum = 4 + 4 + 4, half_sum = 2 + 2 + 2;  // autograd's AccumulateGrad: grad += what backward has made
    constexpr double fused_adamw =
        0.7;  // PyTorch's on H100: 0.68 to 0.76 in fp32 of models without biases from a billion parameters on

    // This library's trainer (runtime/trainer/master_weights.hpp): 16-bit weights and gradients, fp32 weights and two moments.
    // Its losses make the gradient of the logits, and nothing else of their size, and its products add gradients to those of
    // earlier microbatches as they make them (examples/gpt_cuda/layers.hpp): what they read more counts as hidden behind what
    // they multiply.
    const training_stack hetsched;
    auto other = hetsched;  // what it gathers ahead is its own
    for (auto* m : {&other.bf16, &other.fp16, &other.fp32}) {
      m->working_bytes = m->weight_bytes;
      m->working_part_bytes = 0;
    }

    // Megatron-LM, docs/api-guide/dist_optimizer: bf16 weights with fp32 gradients hold 18 bytes, 6 + 12 / d with the distributed
    // optimizer; fp16 with fp16 gradients 20 and 4 + 16 / d, as the optimizer copies gradients to fp32. --grad-reduce-in-bf16
    // makes bf16's gradients 2 bytes. Under --sequence-parallel the input that recomputation keeps is divided, too. Products add
    // to main_grad (gradient_accumulation_fusion; core/tensor_parallel/layers.py, wgrad_gemm_accum_fp32); without the extension,
    // and before 2022, main_grad.add_(grad) does: 10 bytes in bf16 (2 + 4 read, 4 written), 6 in fp16.
    auto megatron = other;
    megatron.name = "megatron";
    megatron.activations.loss_copies = megatron.activations.split_loss_copies = several_precisions;
    megatron.bf16.gradient_bytes = megatron.bf16.reduced_bytes = 4;
    megatron.fp16.optimizer_bytes = 16;
    megatron.activations.whole_inputs = false;
    // megatron/core/pipeline_parallel/p2p_communication.py: batch_isend_irecv, waited for; overlap_p2p_comm is of interleaved
    // schedules alone (megatron/training/arguments.py).
    megatron.sends = send_mode::grouped;

    // PyTorch's FSDP, torch/distributed/fsdp: fp32 weights, gradients and Adam's moments are sharded; MixedPrecisionPolicy's
    // param_dtype gathers weights in 16 bits, reduce_dtype = fp32 adds up gradients in fp32. Of the layer at work and the next
    // one weights are gathered (2 x 2 bytes), and gradients are there in 16 bits and in fp32 for the reduction (2 + 4). Gathers
    // and reductions have streams of their own (forward and backward prefetch). With DTensor's sequence parallelism inputs are
    // divided, but for those of products, which stay gathered until backward. The loss is one kernel, as llm-foundry's
    // loss_fn: fused_crossentropy. No margin: before the allocator fails it frees what it caches and tries again. Reduced
    // gradients are added to the shard's in fp32 (_fsdp_collectives.py): 4 + 4 bytes are read and 4 written.
    auto fsdp = other;
    fsdp.name = "fsdp";
    for (auto* m : {&fsdp.bf16, &fsdp.fp16})
      *m = {.weight_bytes = 2,
            .gradient_bytes = 4,
            .optimizer_bytes = 12,
            .sharded_weight_bytes = 0,
            .working_bytes = 10,
            .accumulation_bytes = fp32_sum};
    fsdp.fp32.working_bytes = 2 * 4 + 4;
    fsdp.fp32.accumulation_bytes = fp32_sum;
    fsdp.activations.whole_inputs = false;
    fsdp.activations.whole_tensors = 1;
    fsdp.activations.loss_copies = fsdp.activations.split_loss_copies = 0;
    fsdp.overheads.margin = 0;
    fsdp.gather_overlap = fsdp.reduction_overlap = 1;
    fsdp.fusion = elementwise_fusion::none;
    fsdp.host_launch_s = eager_launch_s;
    fsdp.update_bandwidth = fused_adamw;

    // torchtitan, training.mixed_precision_param = bfloat16 and mixed_precision_reduce = float32. Its loss is PyTorch's in fp32:
    // beside fp32 logits there are those in bf16, their log-softmax and its gradient (2 + 4 + 4 bytes for 4). With tensor
    // parallelism the backward of loss_parallel has three more in fp32 beside the log-softmax
    // (torch/distributed/tensor/parallel/loss.py), and logits and gradients in bf16, as the published peak of 70B has it
    // (3 x 4 + 2 + 2). Selective recomputation with option op keeps the output of every other product (_save_list): of a block of
    // Llama 3.1 8B input, queries, values, attention, gate and output, 62 of 136 KiB a token. run_train.sh sets
    // expandable_segments, so no fragments are lost. torch.compile puts elementwise operations with what is beside them.
    // Between the microbatches of a pipeline reduction is off (torch/distributed/pipelining/stage.py,
    // backward_maybe_with_nosync), and gradients, whole at any ZeRO stage, are in the type of the reduction: autograd adds bf16
    // to fp32 (fsdp/_fully_shard/_fsdp_param_group.py, _set_unsharded_grad_dtypes), which reads 2 + 4 bytes and writes 4. Without
    // a pipeline each step of accumulation reduces (torchtitan/train.py), and shards are added up in fp32, as fsdp's are.
    auto torchtitan = fsdp;
    torchtitan.name = "torchtitan";
    torchtitan.bf16.staged_accumulation_bytes = torchtitan.fp16.staged_accumulation_bytes = 2 + 4 + 4;
    torchtitan.fp32.staged_accumulation_bytes = fp32_sum;
    torchtitan.activations.loss_copies = 2.5;
    torchtitan.activations.split_loss_copies = 4;
    torchtitan.activations.selective_kept = 0.456;
    torchtitan.overheads.fragmentation = 0;
    torchtitan.fusion = elementwise_fusion::absorbed;
    torchtitan.host_launch_s = 0;  // torch.compile's own code was not measured
    // Orders from a table (pipeline_parallel_schedule_csv) post transfers ahead, so they are asynchronous; the class Schedule1F1B
    // of torch/distributed/pipelining/schedules.py waits for them, grouped.

    // DeepSpeed, runtime/engine.py get_data_types: gradients have the model's type without "data_types": {"grad_accum_dtype"}.
    // Flat fp32 copies of parameters and gradients in the step, which the allocator keeps, were measured to take 20 bytes more
    // (bench/validation/memory_tables.cpp). ZeRO 3 gathers and reduces ahead (overlap_comm, prefetch).
    auto deepspeed = other;
    deepspeed.name = "deepspeed";
    deepspeed.activations.loss_copies = deepspeed.activations.split_loss_copies = several_precisions;
    for (auto* m : {&deepspeed.bf16, &deepspeed.fp16}) {
      m->optimizer_bytes = 12 + 20;
      m->accumulation_bytes = half_sum;  // by autograd, in the model's type
    }
    deepspeed.fp32.accumulation_bytes = fp32_sum;
    deepspeed.gather_overlap = deepspeed.reduction_overlap = 1;
    deepspeed.host_launch_s = eager_launch_s;
    deepspeed.update_bandwidth = fused_adamw;
    deepspeed.flash = flash_kernels::second;  // attn_implementation="flash_attention_2" of transformers' models
    deepspeed.sends = send_mode::blocking;    // runtime/pipe/p2p.py: send and recv, one by one

    // DistributedDataParallel under torch.autocast: everything is fp32, and autocast keeps the weights that it has rounded until
    // it ends (at/autocast_mode.cpp, cached_casts), so weights are of 4 + 2 bytes. Buckets of gradients are added up in fp32
    // while backward goes on.
    auto ddp = fsdp;
    ddp.name = "ddp";
    for (auto* m : {&ddp.bf16, &ddp.fp16})
      *m = {.weight_bytes = 6, .gradient_bytes = 4, .optimizer_bytes = 8, .accumulation_bytes = fp32_sum};
    ddp.fp32 = other.fp32;
    ddp.fp32.accumulation_bytes = fp32_sum;
    ddp.activations = deepspeed.activations;
    ddp.gather_overlap = ddp.reduction_overlap = 0;
    ddp.update_overlap = 1;
    ddp.autocast = true;
    return std::vector{hetsched, megatron, fsdp, torchtitan, deepspeed, ddp};
  }();
  return all;
}

HETSCHED_INLINE std::optional<training_stack> find_training_stack(std::string_view name) {
  for (const auto& s : training_stacks())
    if (s.name == name) return s;
  return std::nullopt;
}

}  // namespace hetsched
