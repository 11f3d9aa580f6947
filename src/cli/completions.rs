//! `oncegate completions`

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, CommandError, print};

#[derive(Args)]
pub(super) struct CompletionsArguments {
    /// The shell that the completions are for
    shell: Shell,
}

pub(super) fn run(arguments: &CompletionsArguments) -> Result<(), CommandError> {
    // Not straight to standard output: clap panics where that fails.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "oncegate", &mut script);
    print(&String::from_utf8_lossy(&script))
}
