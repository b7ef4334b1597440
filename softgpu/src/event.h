// Events: a stream's ticket and the time at which it was reached.
#pragma once

#include <atomic>
#include <memory>

#include "base.h"
#include "broker_client.h"
#include "stream.h"

namespace softgpu {

// One page shared by processes: how often an event was recorded, and how many of those are reached.
struct SharedEvent {
  std::atomic<uint64_t> recorded;
  std::atomic<uint64_t> reached;
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  Ticket ticket;                              // of the last record; no timeline when there was none
  std::shared_ptr<std::atomic<uint64_t>> at;  // when it was reached
  std::shared_ptr<Capture> capture;           // recorded within a capture
  SharedEvent* shared = nullptr;              // of CU_EVENT_INTERPROCESS
  KeepTicket kept;                            // its page, at the broker
  bool imported = false;

  ~Event();
};

// Gives an event a page that other processes can map: no device memory, and without a name.
CUresult MakeSharedEvent(Event* event);
CUresult MapSharedEvent(const Fd& file, Event* event);

}  // namespace softgpu
