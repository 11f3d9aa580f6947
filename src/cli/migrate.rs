//! `oncegate migrate`

use clap::Args;

use super::{ConfigFile, Ended, block_on, load_without_service, print};
use crate::store;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Prints the pending migrations instead of applying them
    #[arg(long)]
    print: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Ended> {
    let config = load_without_service(&arguments.file)?;
    let location = &config.store.location;
    let missing = |error| Ended::Store(location.clone(), error);
    let told = block_on(async {
        if arguments.print {
            let pending = store::pending(&(&config.store).into()).await.map_err(missing)?;
            Ok(pending.iter().map(|migration| format!("-- {}\n{}\n", migration.name, migration.sql)).collect())
        } else {
            let applied = store::migrate(&(&config.store).into()).await.map_err(missing)?;
            Ok(match applied.is_empty() {
                true => format!("nothing to do: the schema of {location} is up to date\n"),
                false => applied.iter().map(|name| format!("applied {name} to {location}\n")).collect(),
            })
        }
    });
    let told: String = told?;
    print(&told)
}
