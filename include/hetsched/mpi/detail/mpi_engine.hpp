// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/mpi/mpi_communicator_test.cpp.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <hetsched/mpi/mpi_session.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/detail/sent_tensor.hpp>
#include <hetsched/runtime/communicator/detail/standstill.hpp>

namespace hetsched {

struct mpi_options {
  MPI_Comm among = MPI_COMM_WORLD;  ///< whose processes are the ranks, in its order
  double connect_deadline_s = 30;   ///< until all have come
  /// Of the longest message; longer tensors go in several. The same on all ranks, at most 2^31 - 1.
  std::size_t message_bytes = std::size_t{1} << 30;
  /// Whether tensors on devices are handed to MPI as they are. None: if MPI says that it takes them; set it where it cannot tell.
  std::optional<bool> device_memory{};
  /// What is to be told of this process, such as that it stood still; may be empty.
  std::function<void(const std::string&)> say{};
};

namespace detail {

/// A send or receive of bytes, on its way.
struct mpi_transfer {
  std::atomic<bool> ended{false};
  double end_s = 0;
  std::byte* data = nullptr;
  sent_tensor what;
  std::size_t messages = 0;  ///< of it that are under way
  bool refused = false;      ///< a receive of what will not come
};

/// A receive that has been posted, as its sender is told.
struct mpi_note {
  edge where;
  sent_tensor what;
  int tag = 0;  ///< under which the receiver waits for it
};

/// One end of a channel.
struct mpi_channel {
  edge where;
  int peer = 0;
  bool sending = false;
  std::deque<mpi_transfer*> sends;  ///< that nobody waits for yet
  std::deque<mpi_note> wanted;      ///< for which there are no sends yet
};

/// The channels of one rank over MPI. A receive is posted to MPI under a tag of its own, and then its sender is told; the sender
/// answers each of these notes by the tensor, or, where it gives up or leaves, by an empty message. So whatever has been posted
/// to MPI comes to its end while all processes live, channels are known by their edges, however many there are, and both ends are
/// compared before bytes move. Notes, numbers, and why a rank gives up are frames, over a communicator of their own.
///
/// MPI makes no progress by itself (Open MPI 4 none at all): it is asked by whoever waits, or by a thread while nobody does. Both
/// ask often at first, and then sleep in between. The session's mutex guards everything but `ended`.
class mpi_engine {
 public:
  using lock = std::unique_lock<std::mutex>;

  mpi_engine(mpi_session& mpi, const mpi_options& options);
  mpi_engine(const mpi_engine&) = delete;
  mpi_engine& operator=(const mpi_engine&) = delete;
  /// Waits until all peers have what was sent to them, at most 5 s, and have been told that this one leaves, as long again (1 s
  /// once aborted). Aborts first if an exception ends this rank, or a gather has come to its deadline.
  ~mpi_engine();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] mpi_channel& open(const edge& e);
  /// Of `t`, data and what are set.
  void post(mpi_channel& c, mpi_transfer& t);
  [[nodiscard]] wait_result wait(deadline_time until, bool sends);
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until);
  /// See asking_plane.
  [[nodiscard]] wait_result ask();
  void on_wake(std::function<void()> ring);
  /// When it returns, no tensor or transfer is touched any more. What MPI cannot be made to let go of within 5 s ends all
  /// processes.
  void abort(const std::string& reason);
  [[nodiscard]] std::string failure() const;
  [[nodiscard]] std::uint64_t bytes_sent() const;

 private:
  enum class frame_kind : std::uint32_t { posted, numbers, abort, leaving, released, ask, answer };
  struct frame_head {
    frame_kind kind = frame_kind::posted;
    std::uint64_t number = 0;  ///< of a round or a question
    std::uint64_t all = 0;     ///< of the numbers of a round
  };
  /// What a request of MPI's is for.
  struct under_way {
    enum { frame_in, frame_out, tensor_in, tensor_out } what = frame_in;
    int peer = 0;
    std::vector<char> bytes;           ///< of frames
    mpi_transfer* transfer = nullptr;  ///< null where no tensor is touched
  };
  struct round_part {
    std::uint64_t round = 0, all = 0;
    std::vector<double> numbers;
  };
  struct peer_state {
    bool gave_up = false;       ///< it has aborted: nothing more comes from it
    bool left = false;          ///< it has said so, and reads nothing more
    bool refused = false;       ///< to send a tensor: a frame says why
    bool told_leaving = false;  ///< that this rank leaves
    bool released = false;      ///< its answer to that: nothing more comes from it
    std::uint64_t answered_to = 0;
    std::deque<round_part> gathered;
    int next_tag = 0;
  };

  void say(int peer, frame_kind kind, std::uint64_t number = 0, std::uint64_t all = 0, const void* body = nullptr,
           std::size_t bytes = 0);
  void listen(int peer, std::vector<char> memory);
  void hear(int peer, const char* frame, std::size_t bytes);
  [[nodiscard]] mpi_channel& find(const edge& e);
  void match(mpi_channel& c);
  void send(mpi_transfer& t, const mpi_note& to, int peer);
  void refuse(const mpi_note& note, int peer);
  [[nodiscard]] std::size_t messages_of(std::uint64_t bytes) const;
  [[nodiscard]] std::size_t size_of(std::uint64_t bytes, std::size_t message) const;
  void add(MPI_Request request, under_way what);
  /// Whether MPI has ended anything.
  bool progress();
  void take(under_way& ended, const MPI_Status& status, int code);
  void end(mpi_transfer& t, bool sent);
  void lose(int peer, int code);
  void fail(const std::string& reason);
  void let_go(lock& hold);
  void ring(bool of_send);
  void pause(lock& hold, int& fruitless) const;
  /// Whether something has come about in time.
  template <class Done>
  bool await(lock& hold, deadline_time until, const Done& done);
  [[nodiscard]] bool is_over(standstill::wait& w);
  [[nodiscard]] bool is_under_way(bool tensors_only) const;
  [[nodiscard]] std::string text_of_lost(int peer) const;
  template <class Done>
  [[nodiscard]] std::string ranks_without(const Done& done) const;
  template <class Done>
  [[nodiscard]] int first_without(const Done& done) const;
  void work();

  mpi_session& mpi_;
  mpi_options options_;
  std::mutex& guard_;
  MPI_Comm frames_ = MPI_COMM_NULL, tensors_ = MPI_COMM_NULL;
  int rank_ = 0, ranks_ = 1, most_tag_ = 32767;
  std::vector<peer_state> peers_;
  std::deque<mpi_channel> channels_;
  std::unordered_map<edge, mpi_channel*, edge_hash> by_edge_;
  std::vector<MPI_Request> requests_;
  std::vector<under_way> of_request_;  ///< beside each
  std::vector<int> ended_;             ///< for progress(), with the next two
  std::vector<MPI_Status> statuses_;
  std::vector<std::pair<under_way, MPI_Status>> taken_;
  std::uint64_t round_ = 0, questions_ = 0, bytes_sent_ = 0;
  std::string reason_;
  bool aborted_ = false;
  bool lost_ = false;                     ///< MPI has failed to reach a rank
  bool leaves_ = false;                   ///< from then on nothing is sent that nobody waits for
  bool received_ = false, sent_ = false;  ///< since the last wait for them
  std::function<void()> also_;            ///< rung
  standstill stood_still_;
  int exceptions_ = std::uncaught_exceptions();  ///< under way since before
  int waiters_ = 0;                              ///< that ask MPI in place of the thread
  bool dozes_ = false;                           ///< the thread, as nothing is under way
  bool stopped_ = false;
  std::condition_variable wake_;
  std::thread worker_;
};

}  // namespace detail

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/mpi/detail/mpi_engine.ipp>
#endif
