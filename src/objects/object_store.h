// Objects in a bucket of an S3 server or in a folder: whole, immutable byte strings under keys.
// Image repositories are built on this interface and on nothing else, so it asks only for what
// every S3 server does: no conditional writes, no multipart uploads, no locks.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"

namespace stasis::objects {

struct ObjectInfo {
  std::string key;
  uint64_t bytes = 0;
  // When the object was put, in seconds since 1970 by the clock of the server or the file system.
  std::optional<int64_t> put_unix_s = {};
};

// One page of the results of List().
struct ListPage {
  std::vector<ObjectInfo> objects;  // in the byte order of their keys
  // If set, there may be more objects: pass the last key as `start_after` for the next page. Never
  // set on an empty page.
  bool more = false;
};

// Limits of one call. After the deadline a call returns kDeadlineExceeded, after a request to stop
// kCancelled. Retries end with the deadline; without one they end after a fixed number of attempts.
struct CallOptions {
  Deadline deadline;
  std::stop_token stop;
};

// Counts of all that a store has sent and received since it was opened, including retries.
struct Counters {
  uint64_t requests = 0;
  uint64_t retries = 0;
  uint64_t bytes_sent = 0;      // of objects, not of headers
  uint64_t bytes_received = 0;  // likewise
};

// Receives a range of an object. Its functions are called by one thread at a time, which need not
// be the thread that called Get(). A store may deliver several ranges with one thread, so Write()
// must not wait for another range.
class Sink {
 public:
  virtual ~Sink() = default;
  // Takes the next bytes of the range, in order. An error ends the Get(), which returns it.
  virtual Status Write(std::string_view part) = 0;
  // Called after a transfer failed before its end. Returns how many bytes of the range, counted
  // from its start, stay valid: at most the bytes written so far. The next Write() continues there.
  virtual uint64_t Rewind() = 0;
};

// All methods block and are safe to call from any thread. Keys must satisfy CheckKey()
// (kInvalidArgument otherwise). A key must not be a folder of another key: `a` and `a/b` cannot
// exist together. Errors name the object and the store.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // Stores the concatenation of `parts` as a whole object and replaces an existing one. On success
  // the object is durable and visible to every reader. After an error, the old object, the new
  // object or (if there was no old one) no object exists, but never a part of an object. The memory
  // of `parts` must not change during the call.
  virtual Status Put(const std::string& key, std::span<const std::string_view> parts,
                     const CallOptions& call = {}) = 0;

  // Writes exactly `bytes` bytes from `offset` on to `sink`. Returns kNotFound if there is no such
  // object and kOutOfRange, before anything is written, if it is shorter than offset + bytes.
  // `bytes` may be 0; the object must exist then, too.
  virtual Status Get(const std::string& key, uint64_t offset, uint64_t bytes, Sink& sink,
                     const CallOptions& call = {}) = 0;

  // Returns a whole object. Returns kNotFound if there is no such object, and kOutOfRange if it is
  // longer than `max_bytes`.
  virtual Result<std::string> GetWhole(const std::string& key, uint64_t max_bytes,
                                       const CallOptions& call = {}) = 0;

  // Lists objects whose keys begin with `prefix` and are greater than `start_after` (both may be
  // empty), at most `limit` of them (1 to kMaxListLimit). Includes every object whose Put() ended
  // before the call, and none whose Delete() did.
  virtual Result<ListPage> List(const std::string& prefix, const std::string& start_after,
                                uint32_t limit, const CallOptions& call = {}) = 0;

  // Deletes an object. Succeeds if the object does not exist.
  virtual Status Delete(const std::string& key, const CallOptions& call = {}) = 0;

  // Removes leftovers of interrupted Put() calls that are older than `older_than`, including those
  // of other processes and hosts. Returns the number of removed leftovers. A leftover is never
  // visible as an object.
  virtual Result<uint64_t> RemoveLeftovers(std::chrono::seconds older_than,
                                           const CallOptions& call = {}) = 0;

  // Returns kFailedPrecondition if the store detects that List() may lack objects that another host
  // has just stored. A caller that deletes objects because no listed object needs them must call
  // this first.
  virtual Status CheckLists() const { return {}; }

  // Returns the name for messages: "s3://bucket/prefix" or the path of a folder.
  virtual std::string Name() const = 0;

  virtual Counters counters() const = 0;
};

inline constexpr uint32_t kMaxListLimit = 1000;

}  // namespace stasis::objects
