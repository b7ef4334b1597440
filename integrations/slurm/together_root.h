// The root process of the programs of a step's tasks on one node (--stasis=together):
//
//   stasis-step --together NODE TASK...    paths of files without their endings (node_files.h)
//
// It starts one program for each task, and ends when all have ended: with code 0 if all had it,
// otherwise with the code of the first one that failed. It is dumped and restored with the
// programs. Therefore it has one thread and no other descriptors than 0, 1 and 2.
//
//   SIGUSR1                 delivers the signals in NODE.signals
//   SIGTERM                 passes it on to all programs
//   NODE.run has changed    the process was restored: writes the exit codes of the programs that
//                           have ended and removes those of the others, which belong to a later
//                           time than the image, and lets each program run on its task's new CPUs
#pragma once

#include <string>
#include <vector>

namespace stasis::slurm {

// If `words` are those words without the first one, does the work of the root process and returns
// its exit code. Otherwise returns -1.
int RunTogether(const std::vector<std::string>& words);

}  // namespace stasis::slurm
