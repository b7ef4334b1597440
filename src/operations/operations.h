// All operations. Each first recovers operations of killed commands (recover.h). Then it surveys
// its target (checks/survey.h), makes all checks, and runs a plan under a journal.
#pragma once

#include "operations/dump.h"
#include "operations/options.h"
#include "operations/restore.h"
#include "operations/resume.h"
#include "operations/suspend.h"
