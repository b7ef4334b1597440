// Dump: writes a complete image of a program, then ends the program or lets it run.
#pragma once

#include <optional>
#include <string>

#include "checks/survey.h"
#include "criu/options.h"
#include "operations/options.h"
#include "operations/result.h"
#include "operations/session.h"
#include "plan/plan.h"
#include "store/codec.h"

namespace stasis::operations {

// A dump in which another program drives CRIU, which writes to its own folders (hold.h). The image
// holds GPU data only.
struct HeldDump {
  // A folder of the program that drives CRIU; the dump replaces its contents. If the folder is not
  // the image itself, it gets a reference to the image (store/image_reference.h).
  std::string folder;
  // If the program is left running, the image is committed when the program runs again, not in
  // CRIU's post-dump.
  bool commits_late = false;
};

// Moves a program to another host at the end of its dump (stasis migrate). The calls come in this
// order, in one thread, while CRIU holds the program stopped. The complete image is kept in the
// store, even after a failure. The caller must delete it.
class HandOver {
 public:
  virtual ~HandOver() = default;
  // Sends the complete image at the path `image` to the other host and restores the program there,
  // except for the last step, which Switch() takes. After an error the program continues here.
  virtual Status Prepare(const std::string& image, plan::PhaseScope& scope) = 0;
  // Lets the program run on the other host. Returns an error only if the program is certainly not
  // running there; it then continues here. After a success it never runs here again.
  static constexpr const char* kSwitch = "switch";  // the phase in which Switch() is called
  enum class Switched { kRunsThere, kUnknown };
  virtual Result<Switched> Switch(plan::PhaseScope& scope) = 0;
  // The destination of the program, "HOST/JOB".
  virtual std::string Place() const = 0;
};

struct DumpOptions {
  std::string store;    // the image's folder is created here
  std::string name;     // the image's name; if empty, made from the subject and the time
  std::string subject;  // first part of that name; if empty, the job or the process id
  bool leave_running = false;
  bool full = false;  // write every block, even those that an earlier image has
  store::Compression compression = store::Compression::kNone;
  std::optional<HeldDump> held;
  bool is_checkpoint = true;      // record the image in the job's list of checkpoints
  HandOver* hand_over = nullptr;  // must outlive the dump
  criu::Options criu;
};
Result<OperationResult> Dump(Session& session, const checks::Target& target,
                             const DumpOptions& dump, const OperationOptions& options);

}  // namespace stasis::operations
