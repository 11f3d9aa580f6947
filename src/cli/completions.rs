//! `oncegate completions`

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Ended, print};

#[derive(Args)]
pub(super) struct Arguments {
    /// The shell they are for
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Ended> {
    // Not straight to standard output: what is written there must be able to fail without a panic.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "oncegate", &mut script);
    print(&String::from_utf8_lossy(&script))
}
