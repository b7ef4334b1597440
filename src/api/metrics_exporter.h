// Serves GET /metrics over HTTP. Connections, bytes and time are limited, so a client can delay
// other scrapers but not the daemon's calls.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace stasis::api {

class MetricsExporter {
 public:
  // `address` is HOST:PORT; with port 0 the kernel chooses one. `text` returns the body of each
  // answer. It is called in the exporter's thread, which runs until the process ends.
  static Result<std::unique_ptr<MetricsExporter>> Start(const std::string& address,
                                                        std::function<std::string()> text);

  // HOST:PORT with the actual port.
  const std::string& address() const { return address_; }

 private:
  explicit MetricsExporter(std::string address) : address_(std::move(address)) {}

  std::string address_;
};

}  // namespace stasis::api
