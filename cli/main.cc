#include "cli/command.h"
#include "cli/executor_calls.h"

int main(int argc, char** argv) {
  return orrery::cli::leave(orrery::cli::run_program({argv + 1, argv + argc}));
}
