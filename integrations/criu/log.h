/* CRIU's log. */
#pragma once

enum { STASIS_LOG_ERROR = 1, STASIS_LOG_INFO = 3 }; /* CRIU's numbers */

/* Writes one line to CRIU's log. */
void stasis_say(unsigned int level, const char* format, ...) __attribute__((format(printf, 2, 3)));
