//! `oncegate`: the allocator and the exit code, nothing else.

use std::process::ExitCode;

/// Most of what a request needs is allocated and freed on one thread, in a few sizes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    oncegate::cli::main()
}
