//! The old and the new program.

use std::ffi::OsString;
use std::net::SocketAddr;

use harness::Proxy;
use harness::proxy::Setup;

/// The variable with the path of the old program.
const OLD: &str = "ONCEGATE_OLD_BINARY";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Old,
    New,
}

impl Version {
    pub fn other(self) -> Self {
        match self {
            Self::Old => Self::New,
            Self::New => Self::Old,
        }
    }

    /// An instance under load. While it drains, it serves for longer than a client takes to hear of it.
    pub fn setup(self, store_url: &str, service: SocketAddr) -> Setup {
        self.run(Proxy::on(store_url).upstream(service))
            .top("drain_delay = \"500ms\"")
            .store("sweep_every = \"1s\"")
            .defaults("upstream_timeout = \"2500ms\"\nin_flight = \"wait\"\nwait_timeout = \"300ms\"")
    }

    /// The same setup with this version's program.
    pub fn run(self, setup: Setup) -> Setup {
        match self {
            Self::New => setup,
            Self::Old => {
                let program = std::env::var_os(OLD).unwrap_or_else(|| panic!("{OLD} is not set: make upgrade FROM=…"));
                // The command that follows begins with the current program, which is left out.
                let instead = ["sh", "-c", "shift; exec \"$0\" \"$@\""].map(OsString::from);
                setup.under(instead.into_iter().chain([program]).collect())
            }
        }
    }
}
