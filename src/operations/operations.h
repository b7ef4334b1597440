// All operations. Each surveys the target first (checks/survey.h), refuses what cannot be done, and
// then runs a plan under a journal. Before that, each finishes or undoes what killed commands left.
#pragma once

#include "operations/dump.h"
#include "operations/options.h"
#include "operations/restore.h"
#include "operations/resume.h"
#include "operations/suspend.h"
