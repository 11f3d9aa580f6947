//! `oncegate schema`

use super::{CommandError, print};
use crate::config;

pub(super) fn run() -> Result<(), CommandError> {
    print(&format!("{:#}\n", config::schema()))
}
