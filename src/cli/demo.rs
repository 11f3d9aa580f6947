//! `oncegate demo`

use std::io::stdout;

use clap::Args;

use super::{CommandError, block_on, failed};
use oncegate_telemetry::terminal::wants_colours;

#[derive(Args)]
pub(super) struct DemoArguments {
    /// Keeps the payments service and the proxy running until Ctrl-C, for requests by hand
    #[arg(long)]
    serve: bool,
}

pub(super) fn run(arguments: &DemoArguments) -> Result<(), CommandError> {
    let program = std::env::current_exe().map_err(failed)?;
    block_on(async {
        let done = match arguments.serve {
            true => oncegate_demo::serve(&program, &mut stdout()).await,
            false => oncegate_demo::tour(&program, &mut stdout(), wants_colours(&stdout())).await,
        };
        done.map_err(|error| CommandError::Other(error))
    })
}
