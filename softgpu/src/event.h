// Events. To record an event, a stream gets a work item. The event has the ticket of this item, and
// the time when it ran.
#pragma once

#include <atomic>
#include <memory>

#include "base.h"
#include "broker_client.h"
#include "stream.h"

namespace softgpu {

// A page shared by processes: how often an event was recorded, and how many of these records have
// completed.
struct SharedEvent {
  std::atomic<uint64_t> recorded;
  std::atomic<uint64_t> reached;
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  Ticket ticket;                              // of the last record; no timeline if there was none
  std::shared_ptr<std::atomic<uint64_t>> at;  // when it was reached
  std::shared_ptr<Capture> capture;           // set if recorded within a capture
  SharedEvent* shared = nullptr;              // for CU_EVENT_INTERPROCESS
  KeepTicket kept;                            // its page in the broker
  bool imported = false;

  ~Event();
};

// Gives an event a page that other processes can map. The page is in a memfd, not in device memory.
CUresult MakeSharedEvent(Event* event);
CUresult MapSharedEvent(const Fd& file, Event* event);

}  // namespace softgpu
