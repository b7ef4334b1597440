// Runs the commands of Stasis for a task.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/subprocess.h"
#include "slurm/step_files.h"
#include "slurm/task.h"

namespace stasis::slurm {

// Not safe to call from several threads.
class StasisCommands : public Commands {
 public:
  // `stasis`: path of the program. The commands get CAP_NET_ADMIN if the task keeps TCP
  // connections.
  StasisCommands(std::string stasis, StepFiles files, const TaskOptions& options)
      : stasis_(std::move(stasis)),
        files_(std::move(files)),
        pidns_socket_(options.pidns_socket),
        network_right_(options.user.tcp == "keep") {}

  void Note(const std::string& text) override;
  int Run(const std::vector<std::string>& args) override;
  std::string Ask(const std::vector<std::string>& args) override;
  Status StartAttached(const std::vector<std::string>& args) override;
  void KillAttached() override;
  void StartBackground(const std::vector<std::string>& args) override;
  void CancelBackground() override;
  void StartReserve(const std::vector<std::string>& args) override;
  void StopReserve() override;

  // Reaps what has ended. Returns the exit code of the attached command once.
  std::optional<int> Reap();

 private:
  Result<Subprocess> Start(std::vector<std::string> words, const std::vector<std::string>& args,
                           std::map<int, int> fds, bool dies_with_parent = false);
  // Runs a command whose messages are only printed.
  int RunShown(const std::vector<std::string>& args);
  static int Await(Subprocess& child);

  std::string stasis_;
  StepFiles files_;
  int pidns_socket_;  // as in TaskOptions
  bool network_right_;
  Subprocess attached_;
  std::optional<Subprocess> background_;
  std::optional<Subprocess> reserve_;
};

}  // namespace stasis::slurm
