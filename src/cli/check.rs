//! `oncegate check`

use std::io::Write;

use super::{ConfigFile, Ended, load};
use crate::config::{self, Overrides};

pub(super) fn run(file: &ConfigFile) -> Result<(), Ended> {
    let config = load(file, &Overrides::default())?;
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    write!(std::io::stdout(), "{}", config::describe(&config)).map_err(|error| Ended::Other(error.into()))
}
