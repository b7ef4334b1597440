#include "log.h"

#include <stdarg.h>
#include <stdio.h>

#include "connection.h"

extern void print_on_level(unsigned int level, const char* format, ...) __attribute__((weak));

void stasis_say(unsigned int level, const char* format, ...) {
  char line[STASIS_CRIU_TEXT + 128];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (print_on_level == NULL) return;
  /* The prefix is that of CRIU's own errors. */
  print_on_level(level, "%sstasis: %s\n",
                 level == STASIS_LOG_ERROR ? "Error (stasis_plugin): " : "", line);
}
