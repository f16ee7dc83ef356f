// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/roster_test.cpp.

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <gloo/rendezvous/store.h>

namespace hetsched {

/// A store in a folder that all ranks see, a file for each name. Names of files end in letters of the name's SHA-256, so that
/// programs of two standard libraries meet, which Gloo's FileStore does not promise.
class folder_store final : public ::gloo::rendezvous::Store {
 public:
  /// Throws: error if the folder cannot be made, or is not there and not to be made.
  explicit folder_store(std::filesystem::path folder, bool makes_it = true);

  /// Throws: error if the name is there, or the file cannot be written.
  void set(const std::string& name, const std::vector<char>& value) override;
  /// Throws: error if the name is not there.
  [[nodiscard]] std::vector<char> get(const std::string& name) override;
  [[nodiscard]] bool check(const std::string& name) const;
  /// Whether the folder is there, or at least not known to be gone.
  [[nodiscard]] bool is_there() const;
  void wait(const std::vector<std::string>& names) override { wait(names, kDefaultTimeout); }
  /// Throws: error if not all are there in time.
  void wait(const std::vector<std::string>& names, const std::chrono::milliseconds& at_most) override;
  /// Removes what this object has set.
  void forget();

 private:
  [[nodiscard]] std::filesystem::path at(const std::string& name) const;

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> own_;
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/folder_store.ipp>
#endif
