//! The hand-over: asked by SIGUSR2, this process drains and then becomes its successor, by `exec`. The successor gets
//! the listening sockets, whose queues keep the connections of the time between. The process id stays, so that no
//! supervisor notices anything.
//!
//! Not SO_REUSEPORT, with both processes at once. There each socket has a queue of its own, and closing the old one
//! resets the connections in its queue, unless the machine's administrator has set net.ipv4.tcp_migrate_req. An
//! embedded store is open in one process alone. And the process id would change, which ends a container and confuses
//! supervisors.

use std::ffi::{CString, OsString};
use std::future::pending;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::process::{self, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as SignalNumber};
use nix::unistd::execvpe;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use super::StartError;
use super::listeners::{CLIENTS, OPERATORS};
use super::reload::{ANOTHER_STORE, LoadConfig, is_another_store};
use super::route_identities;
use oncegate_engine::instance::Instance;
use oncegate_settings::StoreLocation;
use oncegate_store::{self as store, StoreSettings};

/// The shortest delay of a drain whose sockets stay open: meanwhile the next answer on each kept connection closes it.
/// A connection on which no request comes for that long is closed when the delay ends, and its client may just be
/// sending the next one.
pub(super) const CLOSE_KEPT_WITHIN: Duration = Duration::from_secs(1);
/// The time for the first request on the connections that were accepted last, before connections without a request are
/// closed. A request follows its connection after one round trip, and after three with TLS.
pub(super) const FIRST_REQUEST_WITHIN: Duration = Duration::from_millis(500);
/// The time for `oncegate check` to judge the successor's configuration. It reads files and asks nobody.
const CHECK_MAX: Duration = Duration::from_secs(10);
/// The numbers 0 to 2 are the standard streams.
const FIRST_NUMBER: i32 = 3;

/// SIGHUP and SIGUSR2: without a handler for them, they would end the process.
fn reload_and_hand_over() -> SigSet {
    SigSet::from_iter([SignalNumber::SIGHUP, SignalNumber::SIGUSR2])
}

/// Has SIGHUP and SIGUSR2 wait, on this thread and those that it starts. A program keeps that over its `exec`.
pub fn hold_signals() -> io::Result<()> {
    Ok(reload_and_hand_over().thread_block()?)
}

/// Lets them come, also those that have waited. To be called once there are handlers for them.
pub(super) fn release_signals() -> io::Result<()> {
    Ok(reload_and_hand_over().thread_unblock()?)
}

/// The requests for a hand-over.
pub(super) struct HandOverRequests {
    signal: Signal,
    load: LoadConfig,
}

impl HandOverRequests {
    pub(super) fn new(load: LoadConfig) -> io::Result<Self> {
        Ok(Self { signal: signal(SignalKind::user_defined2())?, load })
    }

    /// Waits for a request that can be followed. A successor that would not start is refused, and this process goes on.
    pub(super) async fn wait(&mut self, instance: &Instance) {
        while self.signal.recv().await.is_some() {
            let checked = match check_successor().await {
                Ok(()) => self.check_routes(instance).await,
                Err(cause) => Err(cause),
            };
            match checked {
                Ok(()) => return,
                Err(cause) => tracing::error!(cause, "the hand-over is refused, and this process goes on"),
            }
        }
        pending().await
    }

    /// Checks that the successor's start is not refused because of its routes. Only this process can read an embedded
    /// store now.
    async fn check_routes(&self, instance: &Instance) -> Result<(), String> {
        // What this program cannot read, the successor's may.
        let Ok(new) = (self.load)() else { return Ok(()) };
        let url = &new.start.store.url;
        let remembered = match (url, &instance.config.store.url) {
            // It ends with this process.
            (StoreLocation::Memory, StoreLocation::Memory) => return Ok(()),
            (url, own) if *own != StoreLocation::Memory && is_another_store(url, own) => {
                return Err(format!("store.url has changed: {ANOTHER_STORE}"));
            }
            (url, own) if url == own || matches!(url, StoreLocation::Sqlite(_)) => {
                let found = route_identities::find_remembered(&instance.store, &new.live).await;
                found.map_err(StartError::RouteIdentities)
            }
            (url, _) => {
                if let (StoreLocation::Postgres(_), Err(refusal)) = (url, instance.store.relocate(url).await) {
                    return Err(format!("store.url has changed: {}", refusal.describe()));
                }
                let found = store::remembered_route_identities(&StoreSettings::from(&new)).await;
                let found = found.map(|all| route_identities::select_remembered(all, &new.live));
                found.map_err(|error| StartError::Store(url.clone(), error))
            }
        };
        let accepted = new.start.store.accept_route_changes.as_deref();
        match remembered.and_then(|found| route_identities::check_changes(&found, accepted, &new.live)) {
            Err(error) if !error.is_outage() => Err(error.to_string()),
            Err(_) | Ok(()) => Ok(()),
        }
    }
}

/// Has the program that is at this one's path by now judge the configuration.
async fn check_successor() -> Result<(), String> {
    let (program, arguments) = command_line();
    // In place of `run`, whose arguments `check` takes too.
    let mut check = Command::new(program);
    check.arg("check").args(arguments.into_iter().skip(1));
    check.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    match timeout(CHECK_MAX, check.output()).await {
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => Err(String::from_utf8_lossy(&output.stderr).trim_end().to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("`oncegate check` takes longer than {CHECK_MAX:?}")),
    }
}

fn command_line() -> (OsString, Vec<OsString>) {
    let mut arguments = std::env::args_os();
    (arguments.next().unwrap_or_else(|| "oncegate".into()), arguments.collect())
}

/// Executes the same command line with these variables. The standard library's `exec` would let the signals come that
/// are held, and they would end the successor before it has handlers.
fn become_successor(own: &[(&str, String)]) -> io::Result<io::Error> {
    let text = |text: OsString| CString::new(text.into_vec()).map_err(io::Error::other);
    let (program, arguments) = command_line();
    let program = text(program)?;
    let arguments = arguments.into_iter().map(text).collect::<io::Result<Vec<_>>>()?;
    let arguments = [vec![program.clone()], arguments].concat();
    let inherited = std::env::vars_os().filter(|(name, _)| own.iter().all(|(other, _)| name != other));
    let own = own.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let variable = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        text(name)
    };
    let environment = inherited.chain(own).map(variable).collect::<io::Result<Vec<_>>>()?;
    hold_signals()?;
    let Err(error) = execvpe(&program, &arguments, &environment);
    Ok(error.into())
}

/// The listening sockets, for the successor.
#[derive(Debug)]
pub struct ListeningSockets([TcpListener; 2]);

impl ListeningSockets {
    pub(super) fn new(clients: &TcpListener, operators: &TcpListener) -> io::Result<Self> {
        Ok(Self([clients.try_clone()?, operators.try_clone()?]))
    }

    /// Becomes the successor: the same command line, with these sockets. Returns only if that fails.
    pub fn hand_over(&self) -> io::Error {
        let sockets = match self.duplicate_in_a_row() {
            Ok(sockets) => sockets,
            Err(error) => return error,
        };
        let own = [
            ("LISTEN_PID", process::id().to_string()),
            ("LISTEN_FDS", sockets.len().to_string()),
            ("LISTEN_FDNAMES", format!("{}:{}", CLIENTS.socket, OPERATORS.socket)),
            // Beyond sd_listen_fds(3), where 3 is the first: that number is in use by now.
            ("LISTEN_FDS_FIRST_FD", sockets[0].as_raw_fd().to_string()),
        ];
        become_successor(&own).unwrap_or_else(|error| error)
    }

    /// Duplicates the sockets to numbers that follow each other, for a successor to find.
    fn duplicate_in_a_row(&self) -> io::Result<[OwnedFd; 2]> {
        let Self([clients, operators]) = self;
        let mut from = FIRST_NUMBER;
        let sockets = loop {
            let first = fcntl_dupfd_cloexec(clients, from)?;
            let second = fcntl_dupfd_cloexec(operators, first.as_raw_fd() + 1)?;
            if second.as_raw_fd() == first.as_raw_fd() + 1 {
                break [first, second];
            }
            from = second.as_raw_fd();
        };
        for socket in &sockets {
            fcntl_setfd(socket, FdFlags::empty())?;
        }
        Ok(sockets)
    }
}
