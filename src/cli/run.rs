//! `oncegate run`

use std::time::Duration;

use clap::Args;

use super::init::AS_UNIT;
use super::{CommandError, ConfigFile, DEFAULT_FILE, failed, load};
use crate::app::hand_over;
use crate::app::listeners::HandedSockets;
use crate::app::reload::ConfigSource;
use crate::app::{self, StartError};
use oncegate_config::{self as config, Overrides, ProcessEnvironment};
use oncegate_telemetry as telemetry;

/// The time for the last log lines to be written.
const LOG_FLUSH_MAX: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct RunArguments {
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    overrides: Overrides,
}

pub(super) fn run(arguments: RunArguments) -> Result<(), CommandError> {
    // First of all: until there are handlers for them, they would end the process.
    hand_over::hold_signals().map_err(failed)?;
    let handed = HandedSockets::take().map_err(|error| CommandError::Failure(StartError::HandedSocket(error)))?;
    let RunArguments { file, overrides } = arguments;
    if let (Some(found), None, true) =
        (file.path(), file.path_or(&[DEFAULT_FILE]), rustix::process::geteuid().is_root())
    {
        // What root writes there, the unit's user cannot open.
        let found = found.display();
        return Err(CommandError::Usage(format!(
            "{found} is the unit's: `systemctl start oncegate`, or `{AS_UNIT} oncegate run -c {found}`"
        )));
    }
    let (path, flags) = (file.path(), overrides.clone());
    let source = ConfigSource::new(path.clone(), move || config::load(path.as_deref(), &flags, &ProcessEnvironment));
    let config = load(&file, &overrides)?;
    telemetry::logs::start(&config.start.telemetry).map_err(failed)?;
    // For the store's connections, the tasks and the operators' listener; requests have threads of their own. One
    // thread is enough for batched calls; with two, each batch woke the other thread to look for work.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let result = runtime.block_on(app::run(config, source, handed)).map_err(CommandError::Failure);
    // A connection to a store that hangs must not keep the process from ending.
    runtime.shutdown_background();
    // Nor must a reader of the log that does not read.
    telemetry::logs::flush(LOG_FLUSH_MAX);
    match result? {
        Some(sockets) => Err(CommandError::Failure(StartError::HandOver(sockets.hand_over()))),
        None => Ok(()),
    }
}
