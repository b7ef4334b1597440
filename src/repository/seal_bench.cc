// Measures encryption and decryption on one thread. The rates depend on the machine, so no test
// checks them.
//
//   seal_bench [MIB [ROUNDS]]
//
// Prints the median, minimum and maximum of the rounds (default 5) in GB/s of processor time for
// each variant, over MIB (default 256) of memory.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "repository/seal.h"

namespace stasis::repository {
namespace {

constexpr size_t kMiB = 1 << 20;

double ThreadSeconds() {
  timespec used;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

template <class T>
T Must(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "{}\n", result.error().ToString());
  std::exit(1);
}

void Must(const Status& status) {
  if (status) return;
  fmt::print(stderr, "{}\n", status.error().ToString());
  std::exit(1);
}

void Measure(const std::string& what, size_t bytes, int rounds, const std::function<void()>& work) {
  std::vector<double> rates;
  for (int i = 0; i < rounds; ++i) {
    const double before = ThreadSeconds();
    work();
    rates.push_back(static_cast<double>(bytes) / (ThreadSeconds() - before) / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  fmt::print("{:44} {:6.2f} GB/s ({:.2f} to {:.2f})\n", what, rates[rates.size() / 2],
             rates.front(), rates.back());
}

// The units of one pack, one after the other.
struct Units {
  size_t unit_bytes;
  std::string plain, sealed;

  Units(size_t bytes, size_t unit) : unit_bytes(unit), plain(bytes, 'x') {
    sealed.resize(bytes / unit * SealedUnitBytes(unit));
  }
  size_t count() const { return plain.size() / unit_bytes; }
  std::string_view PlainOf(size_t i) const {
    return std::string_view(plain).substr(i * unit_bytes, unit_bytes);
  }
  char* PlaceOf(size_t i) { return plain.data() + i * unit_bytes; }
  char* SealedOf(size_t i) { return sealed.data() + i * SealedUnitBytes(unit_bytes); }
  std::string_view SealedTextOf(size_t i) {
    return {SealedOf(i), static_cast<size_t>(SealedUnitBytes(unit_bytes))};
  }
};

Id128 SealAll(const MasterKey& master, Units& units) {
  PackSealer sealer = Must(PackSealer::Create(master));
  for (size_t i = 0; i < units.count(); ++i) {
    (void)Must(sealer.Seal(units.PlainOf(i), units.SealedOf(i)));
  }
  return sealer.pack();
}

void OpenAll(const MasterKey& master, const Id128& pack, Units& units, size_t piece) {
  PackOpener opener = Must(PackOpener::Create(master, pack));
  for (size_t i = 0; i < units.count(); ++i) {
    Must(opener.Begin(i, {units.PlaceOf(i), units.unit_bytes}));
    std::string_view sealed = units.SealedTextOf(i);
    for (; !sealed.empty(); sealed.remove_prefix(std::min(piece, sealed.size()))) {
      Must(opener.Add(sealed.substr(0, piece)));
    }
    Must(opener.Finish());
  }
}

int Run(int argc, char** argv) {
  const size_t bytes = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 256) * kMiB;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  if (bytes == 0 || rounds < 1) {
    fmt::print(stderr, "seal_bench [MIB [ROUNDS]]\n");
    return 2;
  }
  const MasterKey master = Must(MasterKey::Random());
  for (size_t unit : {size_t{4} << 10, 2 * kMiB}) {
    Units units(bytes, unit);
    Id128 pack;
    Measure(fmt::format("encrypt units of {} KiB", unit >> 10), bytes, rounds,
            [&] { pack = SealAll(master, units); });
    for (size_t piece : {2 * unit, size_t{512} << 10, size_t{16} << 10}) {
      if (piece > 2 * unit) continue;
      Measure(fmt::format("decrypt units of {} KiB, pieces of {} KiB", unit >> 10,
                          std::min<size_t>(piece, unit) >> 10),
              bytes, rounds, [&] { OpenAll(master, pack, units, piece); });
    }
  }
  return 0;
}

}  // namespace
}  // namespace stasis::repository

int main(int argc, char** argv) { return stasis::repository::Run(argc, argv); }
