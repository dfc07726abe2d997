#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "base/text.h"

namespace orrery::base {
namespace {

using enum ErrorCode;

namespace fs = std::filesystem;

/// Closes on scope exit; close() by hand where its result matters.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

tl::unexpected<Diagnostics> io_error(std::string_view action, ErrorCode refused,
                                     const fs::path& path, int error, std::string hint) {
  const bool misnamed =
      error == ENOENT || error == ENOTDIR || (error == EISDIR && refused == ErrorCode::kIo);
  const ErrorCode code = misnamed ? kNotFound : refused;
  return fail(make_error(code, "cannot {} '{}': {}", action, path.string(), std::strerror(error))
                  .with_hint(std::move(hint)));
}

/// Names like it in the same folder, or what kind of thing to name.
tl::unexpected<Diagnostics> read_error(const fs::path& path, int error) {
  if (error != ENOENT)
    return io_error("read", kUnreadable, path, error,
                    "name a regular file that this user may read");
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry :
       fs::directory_iterator(path.has_parent_path() ? path.parent_path() : fs::path("."), ignored))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  std::string hint = did_you_mean(path.filename().string(), names, "files there");
  if (hint.empty()) hint = "check the path";
  return io_error("read", kUnreadable, path, error, std::move(hint));
}

tl::unexpected<Diagnostics> write_error(const fs::path& path, int error) {
  return io_error("write", kIo, path, error,
                  "name a file in a folder that exists and can be written");
}

int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(as_index(n));
  }
  return 0;
}

/// The mode a new file would get from open(2), which mkstemp(3) does not honour. An existing file
/// keeps its own.
mode_t mode_for(const fs::path& path) {
  struct stat existing {};
  if (::stat(path.c_str(), &existing) == 0) return existing.st_mode & 07777;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

Result<std::string> read_file(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return read_error(path, errno);
  std::string out;
  struct stat info {};
  const bool known = ::fstat(file.get(), &info) == 0;
  if (known && info.st_size > 0) out.reserve(as_index(info.st_size));
  constexpr std::size_t kOfADevice = 1 << 26;  // a terminal ends before, /dev/zero never does
  std::string chunk(1 << 16, '\0');
  for (;;) {
    const ssize_t n = ::read(file.get(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return read_error(path, errno);
    if (n == 0) return out;
    out.append(chunk, 0, as_index(n));
    if (known && S_ISCHR(info.st_mode) && out.size() > kOfADevice) return read_error(path, EFBIG);
  }
}

namespace {

/// A file that is there and is neither a regular one nor a folder, and what /dev and /proc name.
bool is_special(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return false;
  const std::string& text = path.native();
  if (S_ISDIR(info.st_mode)) return false;
  return !S_ISREG(info.st_mode) || text.starts_with("/dev/fd/") || text.starts_with("/dev/std") ||
         text.starts_with("/proc/");
}

/// What a symbolic link leads to, else the path.
fs::path target_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  fs::path target = fs::canonical(path, error);
  return error ? path : target;
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// The standard stream that a name of it means, which has a place of its own in the file it leads
/// to.
int standard_stream(const fs::path& path) {
  if (path == "/dev/stdout" || path == "/dev/fd/1" || path == "/proc/self/fd/1")
    return STDOUT_FILENO;
  if (path == "/dev/stderr" || path == "/dev/fd/2" || path == "/proc/self/fd/2")
    return STDERR_FILENO;
  return -1;
}

Result<void> append(const fs::path& path, std::string_view bytes) {
  if (const int stream = standard_stream(path); stream >= 0) {
    std::fflush(nullptr);  // what was printed before comes first
    if (const int error = write_all(stream, bytes); error != 0) return write_error(path, error);
    return {};
  }
  Descriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file.valid()) return write_error(path, errno);
  int error = write_all(file.get(), bytes);
  if (file.close() != 0 && error == 0) error = errno;
  if (error != 0) return write_error(path, error);
  return {};
}

}  // namespace

Result<void> check_writable(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored) || !path.has_filename()) return write_error(path, EISDIR);
  const fs::path target = is_special(path) ? path : folder_of(target_of(path));
  if (::access(target.c_str(), W_OK) != 0) return write_error(path, errno);
  if (target != path && !fs::is_directory(target, ignored)) return write_error(path, ENOTDIR);
  return {};
}

Result<void> write_file_atomic(const fs::path& named, std::string_view bytes) {
  TRY_VOID(check_writable(named));
  if (is_special(named)) return append(named, bytes);
  const fs::path path = target_of(named);
  const fs::path folder = folder_of(path);
  std::string temporary = (folder / ("." + path.filename().string() + ".XXXXXX")).string();
  Descriptor file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!file.valid()) return write_error(named, errno);
  int error = write_all(file.get(), bytes);
  if (error == 0 && ::fchmod(file.get(), mode_for(path)) != 0) error = errno;
  if (error == 0 && ::fsync(file.get()) != 0) error = errno;
  if (file.close() != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    return write_error(named, error);
  }
  // Makes the rename itself durable; a file system that cannot flush a folder has still replaced
  // the file.
  const Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.valid()) static_cast<void>(::fsync(directory.get()));
  return {};
}

}  // namespace orrery::base
