/* What the workers of the lab execute: note that it ran, and answer. A small static program, because a
   start of a large one costs a user-mode Linux more than all the rest of a task. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char answer[] = "{\"success\": true, \"summary\": \"done\"}\n";

int main(void) {
  const char *step = getenv("ORCHESTRATE_STEP");
  char line[256];
  int length = snprintf(line, sizeof line, "%s\n", step ? step : "?");
  int trace = open("/tmp/trace", O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (trace < 0 || write(trace, line, length) != length) return 1;
  return write(1, answer, sizeof answer - 1) != sizeof answer - 1;
}
