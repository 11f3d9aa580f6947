//! `oncegate schema`

use super::{CommandError, print};
use oncegate_config as config;

pub(super) fn run() -> Result<(), CommandError> {
    print(&format!("{:#}\n", config::schema()))
}
