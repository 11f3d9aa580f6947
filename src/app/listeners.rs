//! The sockets on which clients and operators connect: those that a supervisor has handed over, and new ones for the
//! rest.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process;

use listenfd::ListenFd;
use rustix::net::sockopt;

use super::StartError;

/// The key, the flag and the variable that name an address to listen on, and the name of a socket for it that is handed
/// over.
#[derive(Clone, Copy, Debug, derive_more::Display)]
#[display("`{key}` ({flag}, {variable})")]
pub struct ListenKey {
    pub(super) key: &'static str,
    flag: &'static str,
    variable: &'static str,
    pub(super) socket: &'static str,
}

pub(super) const CLIENTS: ListenKey =
    ListenKey { key: "listen", flag: "--listen", variable: "ONCEGATE_LISTEN", socket: "proxy" };
pub(super) const OPERATORS: ListenKey =
    ListenKey { key: "admin.listen", flag: "--admin", variable: "ONCEGATE_ADMIN_LISTEN", socket: "admin" };

/// An address of the configuration to listen on, with its key.
pub(super) type WantedListener = (SocketAddr, ListenKey);

/// The most sockets that are looked at. Two can be used; the others are named in the error.
const SOCKETS_MAX: usize = 16;

/// The sockets that were handed over to this process at its start, as in sd_listen_fds(3).
#[derive(Debug, Default)]
pub struct HandedSockets(Vec<HandedSocket>);

#[derive(Debug, derive_more::Display)]
#[display("{address} named {name:?}")]
struct HandedSocket {
    name: String,
    address: SocketAddr,
    listener: TcpListener,
}

/// Why sockets that were handed over cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HandedSocketError {
    /// `LISTEN_FDS` has another value than a small number.
    #[error("LISTEN_FDS is {0:?}, and not a number up to {SOCKETS_MAX}")]
    Count(String),
    /// Something else than a listening TCP socket.
    #[error("socket {0} of LISTEN_FDS, named {1:?}, is no TCP socket that listens")]
    Kind(usize, String, #[source] io::Error),
    /// A socket that fits no listener of the configuration.
    #[error(
        "no listener takes the socket of {0}: its address is neither {1} nor {2}, and no other socket has its name `proxy` or `admin`"
    )]
    Unfit(String, String, String),
    /// An admin socket that others than this machine reach, where the configuration says that only this machine does.
    #[error(
        "the socket of {0} can be reached from other machines, and `admin.listen` ({1}) cannot: set it to the socket's address"
    )]
    Exposed(String, SocketAddr),
}

impl HandedSockets {
    /// Takes the sockets. Call it before anything opens a file, so that no number of a missing socket is in use, and
    /// while there is one thread: it removes the variables.
    ///
    /// # Errors
    /// [`HandedSocketError`]: more sockets than can be looked at, or something else than a socket.
    pub fn take() -> Result<Self, HandedSocketError> {
        let variable = |name| std::env::var(name).unwrap_or_default();
        // They may be for the parent of this process, which did not remove them.
        if variable("LISTEN_PID") != process::id().to_string() {
            return Ok(Self::default());
        }
        let (count, names) = (variable("LISTEN_FDS"), variable("LISTEN_FDNAMES"));
        let is_small = count.parse().is_ok_and(|count: usize| count <= SOCKETS_MAX);
        if !is_small {
            return Err(HandedSocketError::Count(count));
        }
        let (mut sockets, mut names) = (ListenFd::from_env(), names.split(':'));
        let mut taken = Vec::new();
        for index in 0..sockets.len() {
            let name = names.next().unwrap_or_default().to_owned();
            match sockets.take_tcp_listener(index).and_then(require_listening) {
                Ok((address, listener)) => taken.push(HandedSocket { name, address, listener }),
                Err(error) => return Err(HandedSocketError::Kind(index + 1, name, error)),
            }
        }
        Ok(Self(taken))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Divides the sockets among the listeners of the configuration: by the address, and then by the name.
    pub(super) fn divide(mut self, wanted: [WantedListener; 2]) -> Result<[Option<TcpListener>; 2], HandedSocketError> {
        let mut found = wanted.map(|(address, _)| self.remove(|socket| socket.address == address));
        for (found, (_, key)) in found.iter_mut().zip(&wanted).filter(|(found, _)| found.is_none()) {
            *found = self.remove(|socket| socket.name == key.socket);
        }
        if let Some(socket) = self.0.first() {
            let [one, other] = wanted.map(|(address, key)| format!("{address} of {key}"));
            return Err(HandedSocketError::Unfit(socket.to_string(), one, other));
        }
        for (socket, (address, key)) in found.iter().zip(&wanted) {
            let Some(socket) = socket else { continue };
            // A listener of the operators that only this machine reaches may have a token of its own or none.
            let is_open = address.ip().is_loopback() && !socket.address.ip().is_loopback();
            if key.socket == OPERATORS.socket && is_open {
                return Err(HandedSocketError::Exposed(socket.to_string(), *address));
            }
            tracing::info!(address = %socket.address, configured = %address, name = socket.name,
                "`{}` uses a socket that was handed over", key.key);
        }
        Ok(found.map(|socket| socket.map(|socket| socket.listener)))
    }

    fn remove(&mut self, fits: impl Fn(&HandedSocket) -> bool) -> Option<HandedSocket> {
        self.0.iter().position(fits).map(|index| self.0.remove(index))
    }
}

fn require_listening(listener: Option<TcpListener>) -> io::Result<(SocketAddr, TcpListener)> {
    let listener = listener.ok_or(io::ErrorKind::NotFound)?;
    match sockopt::socket_acceptconn(&listener)? {
        true => Ok((listener.local_addr()?, listener)),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen")),
    }
}

/// Listens on an address, unless a socket for it was handed over.
pub(super) async fn open(
    (address, key): WantedListener,
    handed: Option<TcpListener>,
) -> Result<(SocketAddr, TcpListener), StartError> {
    let open = async {
        let listener = match handed {
            // Supervisors hand over sockets that block.
            Some(listener) => listener.set_nonblocking(true).map(|()| listener)?,
            None => tokio::net::TcpListener::bind(address).await?.into_std()?,
        };
        Ok((listener.local_addr()?, listener))
    };
    open.await.map_err(|error| StartError::Listen(address, key, error))
}
