//! `oncegate schema`

use super::{Ended, print};
use crate::config;

pub(super) fn run() -> Result<(), Ended> {
    print(&format!("{:#}\n", config::schema()))
}
