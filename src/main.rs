//! The program `oncegate`: the allocator and the exit code.

use std::process::ExitCode;

/// mimalloc: a request's memory is mostly allocated and freed on one thread, in a few sizes.
#[global_allocator]
// Cargo.toml has the reasons for its version and features.
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    oncegate::cli::main()
}
