//! `oncegate run`

use std::time::Duration;

use clap::Args;

use super::{ConfigFile, Ended, load};
use crate::app::reload::Source;
use crate::config::{self, Overrides, Process};
use crate::{app, telemetry};

/// For what is logged last to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Where clients connect, e.g. 127.0.0.1:8080 [env: ONCEGATE_LISTEN]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The service, e.g. http://127.0.0.1:3000 [env: ONCEGATE_UPSTREAM]
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// sqlite:PATH, postgres://USER@HOST/DB or memory: [env: ONCEGATE_STORE_URL]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Where operators and probes connect [env: ONCEGATE_ADMIN_LISTEN]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
}

pub(super) fn run(arguments: Arguments) -> Result<(), Ended> {
    let Arguments { file, listen, upstream, store, admin } = arguments;
    let overrides = Overrides { listen, upstream, store, admin };
    let (path, flags) = (file.config.clone(), overrides.clone());
    let source = Source::new(path.clone(), move || config::load(path.as_deref(), &flags, &Process));
    let config = load(&file, &overrides)?;
    telemetry::logs::start(&config.log).map_err(|error| Ended::Other(error.into()))?;
    // The store's connections, the tasks and the operators' listener; requests have threads of their own. One thread is
    // enough for what is batched, and with two of them each batch woke the other one to look for work.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Ended::Other(error.into()))?;
    let ended = runtime.block_on(app::run(config, source)).map_err(Ended::Failure);
    // A connection to a store that hangs must not keep the process from ending.
    runtime.shutdown_background();
    // Nor must whoever reads the log, or does not.
    telemetry::logs::flush(LAST_WORDS);
    ended
}
