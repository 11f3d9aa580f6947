//! `oncegate`: exit codes, nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    oncegate::cli::main()
}
