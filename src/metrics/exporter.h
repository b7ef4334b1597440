// Serves GET /metrics to whoever can reach its port: bounded in connections, bytes and time, so
// that nobody who scrapes, or pretends to, is in anybody's way but his own kind's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace stasis::metrics {

class Exporter {
 public:
  // `address` is HOST:PORT; port 0 is chosen for us. `text` is asked for each answer, in the
  // exporter's thread, which lives as long as the process.
  static Result<std::unique_ptr<Exporter>> Start(const std::string& address,
                                                 std::function<std::string()> text);

  const std::string& address() const { return address_; }

 private:
  explicit Exporter(std::string address) : address_(std::move(address)) {}

  std::string address_;
};

}  // namespace stasis::metrics
