// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/write_file.hpp>

namespace fs = std::filesystem;
using namespace hetsched;

namespace {

class folder {
 public:
  folder() : path_(fs::temp_directory_path() / ("hetsched_write_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directory(path_);
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { fs::remove_all(path_); }
  [[nodiscard]] std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  [[nodiscard]] auto size() const { return std::distance(fs::directory_iterator(path_), fs::directory_iterator()); }

 private:
  fs::path path_;
};

struct ::stat status(const std::string& path) {
  struct ::stat found = {};
  REQUIRE(::lstat(path.c_str(), &found) == 0);
  return found;
}
auto mode(const std::string& path) { return status(path).st_mode & 0777U; }

/// Somebody without rights, where the tests run as root.
class somebody {
 public:
  somebody() {
    if (::geteuid() == 0) REQUIRE(::seteuid(65534) == 0);
  }
  somebody(const somebody&) = delete;
  somebody& operator=(const somebody&) = delete;
  ~somebody() {
    if (::getuid() == 0) (void)!::seteuid(0);
  }
};

std::string complaint(const std::string& path) {
  try {
    write_file(path, "new");
  } catch (const error& wrong) {
    return wrong.what();
  }
  return "";
}
bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a file is written whole, replaced whole, and leaves nothing else behind") {
  const folder f;
  const auto path = f / "a.json";
  write_file(path, "first");
  write_file(path, std::string(100'000, 'x'));
  CHECK(read_text(path) == std::string(100'000, 'x'));
  CHECK(f.size() == 1);
  const auto long_name = f / std::string(255, 'n');
  write_file(long_name, "text");
  CHECK(read_text(long_name) == "text");
  fs::remove(long_name);

  // A folder cannot be replaced by a file.
  fs::create_directories(f / "taken/inside");
  CHECK_THROWS_AS(write_file(f / "taken", "text"), error);
  CHECK_THROWS_AS(write_file(f / "none/a.json", "text"), error);
  CHECK(f.size() == 2);

  CHECK_NOTHROW(check_writable(path));
  CHECK_THROWS_AS(check_writable(f / "none/a.json"), input_error);
  for (const auto& no_file : {f / "taken", f / "taken/", f / "fresh/", f / "a.json/b", std::string(), std::string("/")}) {
    CAPTURE(no_file);
    CHECK_THROWS_AS(check_writable(no_file), input_error);
  }
}

TEST_CASE("a file that is replaced keeps its mode and owner; a new one has those of any new file") {
  const folder f;
  std::ofstream(f / "plain") << "made by others";
  write_file(f / "new", "text");
  CHECK(mode(f / "new") == mode(f / "plain"));
  for (const mode_t kept : {0600U, 0640U, 0666U, 0755U}) {
    REQUIRE(::chmod((f / "new").c_str(), kept) == 0);
    write_file(f / "new", "again");
    CHECK(mode(f / "new") == kept);
  }
  if (::geteuid() == 0) {
    REQUIRE(::chown((f / "new").c_str(), 65534, 65533) == 0);
    write_file(f / "new", "again");
    CHECK(status(f / "new").st_uid == 65534);
    CHECK(status(f / "new").st_gid == 65533);
  }
}

TEST_CASE("symbolic links stay: what they name is replaced, or made") {
  const folder f;
  fs::create_directory(f / "below");
  write_file(f / "below/a", "old");
  fs::create_symlink("below/a", f / "link");
  fs::create_symlink(f / "link", f / "second");
  fs::create_symlink("below/fresh", f / "dangling");
  fs::create_symlink("none/fresh", f / "nowhere");
  fs::create_symlink("round", f / "round");
  fs::create_symlink("below", f / "folder");
  write_file(f / "second", "new");
  write_file(f / "dangling", "made");
  CHECK(read_text(f / "below/a") == "new");
  CHECK(read_text(f / "below/fresh") == "made");
  for (const char* name : {"link", "second", "dangling"}) CHECK(fs::is_symlink(f / name));
  for (const char* name : {"nowhere", "round", "folder"}) CHECK_THROWS_AS(check_writable(f / name), input_error);
}

TEST_CASE("pipes and devices are written as they are, sockets refused") {
  const folder f;
  REQUIRE(::mkfifo((f / "pipe").c_str(), 0600) == 0);
  std::string came;
  std::thread reader([&] { std::getline(std::ifstream(f / "pipe"), came); });
  write_file(f / "pipe", "through a pipe\n");
  reader.join();
  CHECK(came == "through a pipe");
  CHECK(S_ISFIFO(status(f / "pipe").st_mode));

  if (::mknod((f / "null").c_str(), S_IFCHR | 0600, ::makedev(1, 3)) == 0 && std::ofstream(f / "null")) {
    fs::create_symlink("null", f / "link");
    write_file(f / "null", "gone");
    write_file(f / "link", "gone");
    CHECK(S_ISCHR(status(f / "null").st_mode));
    REQUIRE(::mknod((f / "full").c_str(), S_IFCHR | 0600, ::makedev(1, 7)) == 0);
    CHECK(holds(complaint(f / "full"), "writing failed: No space"));
  } else {
    MESSAGE("skipped: devices can be made by root only");
  }

  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  (f / "socket").copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  CHECK(holds(complaint(f / "socket"), "is a socket"));
  ::close(listener);
}

TEST_CASE("an open descriptor is written where it stands, even that of a file") {
  const folder f;
  const int out = ::open((f / "log").c_str(), O_WRONLY | O_CREAT, 0600), in = ::open((f / "log").c_str(), O_RDONLY);
  REQUIRE(::write(out, "first\n", 6) == 6);
  write_file("/proc/self/fd/" + std::to_string(out), "second\n");
  REQUIRE(::write(out, "third\n", 6) == 6);
  CHECK(read_text(f / "log") == "first\nsecond\nthird\n");
  CHECK(holds(complaint("/dev/fd/" + std::to_string(in)), "reading only"));
  ::close(out);
  ::close(in);
  CHECK_THROWS_AS(check_writable("/proc/self/fd/" + std::to_string(out)), input_error);
}

TEST_CASE("what fails leaves the old file, and says why") {
  const folder f;
  write_file(f / "a", "old");
  rlimit before = {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string why;
  try {
    write_file(f / "a", std::string(5000, 'x'));
  } catch (const error& wrong) {
    why = wrong.what();
  }
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  (void)std::signal(SIGXFSZ, handler);
  CHECK(holds(why, "writing failed: File too large"));
  CHECK(read_text(f / "a") == "old");
  CHECK(f.size() == 1);
}

TEST_CASE("neither a file nor a folder that may not be written is written") {
  const folder f;
  fs::create_directory(f / "open");
  fs::create_directory(f / "closed");
  fs::create_directory(f / "sticky");
  for (const char* path : {"open/a", "closed/a", "sticky/a"}) {
    write_file(f / path, "old");
    REQUIRE(::chmod((f / path).c_str(), 0666) == 0);
  }
  write_file(f / "open/locked", "old");
  REQUIRE(::chmod((f / "open/locked").c_str(), 0444) == 0);
  fs::create_symlink("closed/a", f / "link");
  fs::create_symlink("closed/fresh", f / "dangling");
  fs::permissions(f / "", fs::perms(0755));
  fs::permissions(f / "open", fs::perms(0777));
  fs::permissions(f / "closed", fs::perms(0555));
  fs::permissions(f / "sticky", fs::perms(01777));
  {
    const somebody nobody;
    if (std::ifstream(f / "open/a")) {
      CHECK(complaint(f / "open/a").empty());
      CHECK(holds(complaint(f / "open/locked"), "the file cannot be written: Permission denied"));
      for (const char* path : {"closed/a", "closed/fresh", "link", "dangling"})
        CHECK(holds(complaint(f / path), "/closed cannot be written: Permission denied"));
      if (::getuid() == 0) CHECK(holds(complaint(f / "sticky/a"), "somebody else's"));
    } else {
      MESSAGE("skipped: others may not enter the folder for temporary files");
    }
  }
  CHECK(read_text(f / "closed/a") == "old");
  fs::permissions(f / "closed", fs::perms(0755));
}
