// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo/process_place.hpp>
#include <hetsched/gloo/rendezvous.hpp>

#include <doctest/doctest.h>

#include <map>
#include <string>

using namespace hetsched;

namespace {

process_place place(const std::map<std::string, std::string>& environment) {
  return place_from([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string problem(const std::map<std::string, std::string>& environment) {
  try {
    (void)place(environment);
  } catch (const input_error& e) {
    return e.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("a process that nobody told a rank knows what tells of several") {
  CHECK(place({}).alone.empty());
  CHECK(place({{"SLURM_NTASKS", "1"}, {"SLURM_NNODES", "1"}}).alone.empty());
  const auto shell = place({{"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "7"}});
  CHECK(shell.ranks == 1);
  CHECK(shell.launcher.empty());
  CHECK(shell.alone == "SLURM_NTASKS is 2, this is the shell of an allocation of 2 tasks: start with srun");
  CHECK(place({{"SLURM_NNODES", "4"}}).alone ==
        "SLURM_NNODES is 4, this is the shell of an allocation of 4 nodes: start with srun");
  CHECK(place({{"JOB_COMPLETION_INDEX", "0"}}).alone.find("JOB_COMPLETION_INDEX is 0, this is a pod of an indexed job") == 0);
  // One launcher tells of one process, another of several.
  CHECK(
      place({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}).alone.find("SLURM_NTASKS is 2") ==
      0);
  CHECK(place({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_SIZE", "3"}}).alone ==
        "OMPI_COMM_WORLD_SIZE is 3, mpirun started 3 processes");
  CHECK(place({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}}).alone.empty());
  CHECK(place({{"FLUX_JOB_SIZE", "4"}}).alone == "FLUX_JOB_SIZE is 4, flux started 4 processes");
  CHECK(place({{"PMIX_RANK", "1"}}).alone == "PMIX_RANK is 1, and nothing says how many there are: set WORLD_SIZE");
  CHECK(problem({{"SLURM_NTASKS", "two"}}).find("SLURM_NTASKS is \"two\"") == 0);
}

TEST_CASE("a process finds its place") {
  CHECK(place({}).ranks == 1);
  CHECK(place({}).launcher.empty());

  const auto torch = place({{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"MASTER_ADDR", "alpha"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_RUN_ID", "job"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"},
                            {"SLURM_PROCID", "0"},
                            {"SLURM_NTASKS", "2"}});
  CHECK(torch.launcher == "torchrun");
  CHECK(torch.rank == 5);
  CHECK(torch.ranks == 8);
  CHECK(torch.local_rank == 1);
  CHECK(torch.master == "alpha");
  CHECK(torch.run == "job.29500.2");
  CHECK(torch.store.empty());
  std::map<std::string, std::string> with_store{{"RANK", "0"},
                                                {"WORLD_SIZE", "1"},
                                                {"MASTER_ADDR", "alpha"},
                                                {"MASTER_PORT", "29500"},
                                                {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  CHECK(place(with_store).store == "torch://alpha:29500");
  with_store["MASTER_ADDR"] = "fe80::1";
  CHECK(place(with_store).store == "torch://[fe80::1]:29500");
  with_store["TORCHELASTIC_USE_AGENT_STORE"] = "False";  // then the first worker is to serve it
  CHECK(place(with_store).store.empty());

  const auto open_mpi = place({{"OMPI_COMM_WORLD_RANK", "3"},
                               {"OMPI_COMM_WORLD_SIZE", "4"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                               {"PMIX_NAMESPACE", "7@1"}});
  CHECK(open_mpi.launcher == "mpirun");
  CHECK(open_mpi.rank == 3);
  CHECK(open_mpi.local_rank == 0);
  CHECK(open_mpi.run == "7@1");

  // Open MPI 5 starts by PRRTE, which tells PMIx's rank as well; PRRTE alone, and others, tell only that.
  const auto prrte = place({{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "prterun-host-7@1"}, {"WORLD_SIZE", "4"}});
  CHECK(prrte.launcher == "pmix");
  CHECK(prrte.rank == 3);
  CHECK(prrte.ranks == 4);
  CHECK(prrte.run == "prterun-host-7@1");
  CHECK(place({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "3"}}).launcher == "mpirun");
  CHECK(place({{"PMIX_RANK", "3"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}}).launcher == "torchrun");
  // With any of the launchers that tell more, WORLD_SIZE may be there for something else.
  const auto beside = [](std::map<std::string, std::string> others) {
    others.insert({{"PMIX_RANK", "3"}, {"WORLD_SIZE", "8"}});
    const auto found = place(others);
    return found.launcher + " " + std::to_string(found.rank) + " of " + std::to_string(found.ranks);
  };
  CHECK(beside({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}}) == "mpirun 1 of 4");
  CHECK(beside({{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "4"}}) == "flux 1 of 4");
  CHECK(beside({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}) == "pmi 1 of 4");
  CHECK(beside({{"PMIX_NAMESPACE", "slurm.pmix.17.4"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}}) == "slurm 1 of 4");
  CHECK(beside({{"PMIX_NAMESPACE", "prterun-host-7@1"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}) == "pmix 3 of 8");
  const auto srun_pmix = place({{"PMIX_RANK", "1"},
                                {"PMIX_NAMESPACE", "slurm.pmix.17.4"},
                                {"SLURM_PROCID", "1"},
                                {"SLURM_NTASKS", "2"},
                                {"SLURM_LOCALID", "1"},
                                {"SLURM_JOB_ID", "17"},
                                {"SLURM_STEP_ID", "4"}});
  CHECK(srun_pmix.launcher == "slurm");
  CHECK(srun_pmix.ranks == 2);
  CHECK(srun_pmix.run == "17.4");

  const auto pmi = place({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  CHECK(pmi.launcher == "pmi");
  CHECK(pmi.local_rank == 1);

  const auto flux = place({{"FLUX_TASK_RANK", "5"},
                           {"FLUX_JOB_SIZE", "8"},
                           {"FLUX_TASK_LOCAL_ID", "1"},
                           {"FLUX_JOB_ID", "f2Bx"},
                           {"PMI_RANK", "5"},
                           {"PMI_SIZE", "8"}});
  CHECK(flux.launcher == "flux");
  CHECK(flux.rank == 5);
  CHECK(flux.ranks == 8);
  CHECK(flux.local_rank == 1);
  CHECK(flux.run == "f2Bx");

  std::map<std::string, std::string> pod{
      {"JOB_COMPLETION_INDEX", "3"}, {"WORLD_SIZE", "4"}, {"HOSTNAME", "train-7-3"}, {"MASTER_ADDR", "train-7-0.train"}};
  CHECK(place(pod).launcher == "kubernetes");
  CHECK(place(pod).rank == 3);
  CHECK(place(pod).ranks == 4);
  CHECK(place(pod).local_rank == 0);
  CHECK(place(pod).run == "train-7");
  CHECK(place(pod).master == "train-7-0.train");
  pod["RANK"] = "1";  // torchrun, started in a pod
  CHECK(place(pod).launcher == "torchrun");
  CHECK(place(pod).rank == 1);

  const auto slurm = place({{"SLURM_PROCID", "2"},
                            {"SLURM_NTASKS", "3"},
                            {"SLURM_LOCALID", "0"},
                            {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"},
                            {"SLURM_JOB_ID", "17"},
                            {"SLURM_STEP_ID", "4"}});
  CHECK(slurm.launcher == "slurm");
  CHECK(slurm.rank == 2);
  CHECK(slurm.master == "10.0.0.1");
  CHECK(slurm.run == "17.4");
  // The shell of an allocation is no rank of it.
  CHECK(place({{"SLURM_NTASKS", "3"}}).ranks == 1);
}

TEST_CASE("environments that are half set or make no sense") {
  CHECK(problem({{"RANK", "0"}}) == "RANK is set, but WORLD_SIZE is not: they come together from torchrun");
  CHECK(problem({{"PMI_SIZE", "2"}}) == "PMI_SIZE is set, but PMI_RANK is not: they come together from pmi");
  CHECK(problem({{"FLUX_TASK_RANK", "0"}}) == "FLUX_TASK_RANK is set, but FLUX_JOB_SIZE is not: they come together from flux");
  CHECK(problem({{"PMIX_RANK", "2"}, {"WORLD_SIZE", "2"}}) == "PMIX_RANK is 2 with WORLD_SIZE 2");
  CHECK(problem({{"PMIX_RANK", "-1"}, {"WORLD_SIZE", "2"}}) == "PMIX_RANK is \"-1\", which is no count");
  CHECK(problem({{"JOB_COMPLETION_INDEX", "4"}, {"WORLD_SIZE", "4"}}) == "JOB_COMPLETION_INDEX is 4 with WORLD_SIZE 4");
  CHECK(problem({{"SLURM_PROCID", "0"}}) == "SLURM_PROCID is set, but SLURM_NTASKS is not: they come together from slurm");
  CHECK(problem({{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "2"}}) ==
        "OMPI_COMM_WORLD_RANK is \"x\", which is no count");
  CHECK(problem({{"RANK", "1 "}, {"WORLD_SIZE", "2"}}) == "RANK is \"1 \", which is no count");
  CHECK(problem({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}) == "RANK is \"-1\", which is no count");
  CHECK(problem({{"RANK", "99999999999"}, {"WORLD_SIZE", "2"}}) == "RANK is \"99999999999\", which is no count");
  CHECK(problem({{"RANK", "2"}, {"WORLD_SIZE", "2"}}) == "RANK is 2 with WORLD_SIZE 2");
  CHECK(problem({{"RANK", "0"}, {"WORLD_SIZE", "0"}}) == "RANK is 0 with WORLD_SIZE 0");
  CHECK(problem({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "one"}}) == "LOCAL_RANK is \"one\", which is no count");
}

TEST_CASE("places of a rendezvous") {
  using detail::parse_store;
  CHECK(parse_store("file:/a/b").path_or_host == "/a/b");
  CHECK(parse_store("file:///a/b").path_or_host == "/a/b");
  CHECK(parse_store("file:b").path_or_host == "b");
  CHECK(parse_store("file:b").kind == detail::store_place::file);
  CHECK(parse_store("redis://host").kind == detail::store_place::redis);
  CHECK(parse_store("torch://[fe80::1]:29400").kind == detail::store_place::torch);
  CHECK(parse_store("torch://[fe80::1]:29400").path_or_host == "fe80::1");
  CHECK(parse_store("torch://[fe80::1]:29400").port == 29400);
  CHECK(parse_store("redis://host").port == 6379);
  CHECK(parse_store("redis://host:7").port == 7);
  CHECK(parse_store("redis://host:7").path_or_host == "host");
  for (const auto* bad : {"", "file:", "/a/b", "redis://", "redis://:7", "redis://h:", "redis://h:x", "redis://h:0",
                          "redis://h:65536", "torch://h", "torch://h:", "torch://:7"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS((void)parse_store(bad), input_error);
  }
  // Nobody listens at port 1.
  CHECK_THROWS_AS((void)open_gloo_store("redis://127.0.0.1:1"), error);
}
