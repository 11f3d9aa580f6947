//! `oncegate migrate`

use clap::Args;

use super::{CommandError, ConfigFile, block_on, load_without_service, print};
use oncegate_store as store;

#[derive(Args)]
pub(super) struct MigrateArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Prints the pending migrations instead of applying them
    #[arg(long)]
    print: bool,
}

pub(super) fn run(arguments: &MigrateArguments) -> Result<(), CommandError> {
    let config = load_without_service(&arguments.file)?;
    let location = &config.start.store.url;
    let store_error = |error| CommandError::Store(location.clone(), error);
    let output = block_on(async {
        if arguments.print {
            let pending = store::pending(&(&config).into()).await.map_err(store_error)?;
            Ok(pending.iter().map(|migration| format!("-- {}\n{}\n", migration.name, migration.sql)).collect())
        } else {
            let applied = store::migrate(&(&config).into()).await.map_err(store_error)?;
            Ok(match applied.is_empty() {
                true => format!("nothing to do: the schema of {location} is up to date\n"),
                false => applied.iter().map(|name| format!("applied {name} to {location}\n")).collect(),
            })
        }
    });
    let output: String = output?;
    print(&output)
}
