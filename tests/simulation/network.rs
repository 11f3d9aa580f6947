//! The simulated network: connections between clients, proxies and the service, which take time, break and fall silent.

use std::collections::BTreeMap;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future;
use http::uri::Authority;
use oncegate_http::upstream::MemoryNetwork;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::hosts::{Millis, now};
use crate::leases::Leases;
use crate::seeded_random::SeededRandom;
use crate::trace;

/// The bytes of a connection that wait for their reader.
const BUFFER: usize = 64 * 1024;

/// Where a connection leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Service,
    Proxy(usize),
}

/// The one who opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    Client(u64),
    /// A process by its number: each start has another one.
    Process(usize),
}

/// The network. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Network(Arc<NetworkState>);

#[derive(Debug)]
struct NetworkState {
    listeners: Mutex<BTreeMap<Place, mpsc::UnboundedSender<DuplexStream>>>,
    /// The connections to be carried, for the task of the network.
    opened: mpsc::UnboundedSender<Connection>,
    random: Mutex<SeededRandom>,
    /// Per mille of the connections with each kind of fault; 0 once the faults are over.
    faults: Mutex<usize>,
    /// No bytes pass to or from a place before this time.
    silent_until: Mutex<BTreeMap<Place, Millis>>,
    leases: Arc<Leases>,
    /// Wakes the tasks of the open connections, in the order of their opening.
    woken: Mutex<Vec<(Caller, Place, Weak<Notify>)>>,
}

/// An open connection between two streams.
#[derive(Debug)]
struct Connection {
    caller: Caller,
    place: Place,
    near: DuplexStream,
    far: DuplexStream,
    /// What happens to the bytes from the caller, and to those towards it.
    fates: [Fate; 2],
    random: SeededRandom,
    woken: Arc<Notify>,
}

/// What happens to one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    /// The connection breaks once so many bytes have arrived.
    Breaks(usize),
    /// Nothing more arrives once so many bytes have, and nobody is told.
    FallsSilent(usize),
}

impl Network {
    /// The network and the task that carries its bytes.
    pub fn new(random: SeededRandom, faults: usize, leases: Arc<Leases>) -> (Self, impl Future<Output = ()> + Send) {
        let (opened, mut connections) = mpsc::unbounded_channel();
        let network = Self(Arc::new(NetworkState {
            listeners: Mutex::default(),
            opened,
            random: Mutex::new(random),
            faults: Mutex::new(faults),
            silent_until: Mutex::default(),
            leases,
            woken: Mutex::default(),
        }));
        let state = Arc::downgrade(&network.0);
        let task = async move {
            while let Some(connection) = connections.recv().await {
                let Some(state) = state.upgrade() else { return };
                tokio::spawn(carry(state, connection));
            }
        };
        (network, task)
    }

    /// Accepts the connections to a place from now on.
    pub fn listen(&self, place: Place) -> mpsc::UnboundedReceiver<DuplexStream> {
        let (sender, accepted) = mpsc::unbounded_channel();
        self.0.listeners.lock().unwrap().insert(place, sender);
        accepted
    }

    /// Lets no bytes to or from a place pass before that time.
    pub fn silence(&self, place: Place, until: Millis) {
        self.0.silent_until.lock().unwrap().insert(place, until);
    }

    /// Lets the connections of a process that is about to be killed notice its end in the order of their opening. A
    /// runtime drops its tasks in an order that depends on all tasks of this test's process.
    pub fn wake_connections(&self, process: usize, place: Place) {
        let mut open = self.0.woken.lock().unwrap();
        open.retain(|(.., woken)| woken.strong_count() > 0);
        let of_process = open.iter().filter(|(caller, to, _)| *caller == Caller::Process(process) || *to == place);
        of_process.filter_map(|(.., woken)| woken.upgrade()).for_each(|woken| woken.notify_one());
    }

    /// From now on new connections have no faults.
    pub fn stop_misbehaving(&self) {
        *self.0.faults.lock().unwrap() = 0;
    }

    /// Opens a connection.
    pub async fn connect(&self, caller: Caller, place: Place) -> io::Result<DuplexStream> {
        let (wait, is_lost, fates, random) = {
            let mut random = self.0.random.lock().unwrap();
            let faults = *self.0.faults.lock().unwrap();
            let fates = [draw_fate(&mut random, faults), draw_fate(&mut random, faults)];
            (random.millis(0, 6), random.chance(faults), fates, random.split())
        };
        sleep(wait).await;
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listener = self.0.listeners.lock().unwrap().get(&place).cloned();
        let Some(listener) = listener.filter(|listener| !is_lost && !listener.is_closed()) else {
            return Err(refused());
        };
        let ((own, near), (far, other)) = (duplex(BUFFER), duplex(BUFFER));
        listener.send(other).map_err(|_| refused())?;
        let woken = Arc::new(Notify::new());
        self.0.woken.lock().unwrap().push((caller, place, Arc::downgrade(&woken)));
        self.0.opened.send(Connection { caller, place, near, far, fates, random, woken }).map_err(|_| refused())?;
        Ok(own)
    }
}

fn draw_fate(random: &mut SeededRandom, faults: usize) -> Fate {
    let bytes = random.below(700);
    match random.below(1_000) {
        drawn if drawn < faults => Fate::Breaks(bytes),
        drawn if drawn < 2 * faults => Fate::Breaks(0),
        drawn if drawn < 3 * faults => Fate::FallsSilent(bytes),
        _ => Fate::Arrives,
    }
}

async fn carry(state: Arc<NetworkState>, connection: Connection) {
    let Connection { caller, place, near, far, fates, mut random, woken } = connection;
    if fates != [Fate::Arrives; 2] {
        trace::record(format_args!("connection of {caller:?} to {place:?}: {fates:?}"));
    }
    let broken = CancellationToken::new();
    let (from_near, to_near) = split(near);
    let (from_far, to_far) = split(far);
    let there = Direction { state: &state, caller: Some(caller), place, fate: fates[0], random: random.split() };
    let back = Direction { state: &state, caller: None, place, fate: fates[1], random };
    let mut both = pin!(future::join(there.carry(from_near, to_far, &broken), back.carry(from_far, to_near, &broken)));
    loop {
        tokio::select! {
            biased;
            () = broken.cancelled() => return,
            _ = &mut both => return,
            () = woken.notified() => {}
        }
    }
}

/// One direction of a connection.
struct Direction<'a> {
    state: &'a NetworkState,
    /// The caller, for the bytes that come from it.
    caller: Option<Caller>,
    place: Place,
    fate: Fate,
    random: SeededRandom,
}

impl Direction<'_> {
    async fn carry(
        mut self,
        mut from: ReadHalf<DuplexStream>,
        mut to: WriteHalf<DuplexStream>,
        broken: &CancellationToken,
    ) {
        let (mut bytes, mut arrived) = ([0; 4096], 0);
        loop {
            let read = from.read(&mut bytes).await.unwrap_or(0);
            // Not an event: whoever has claimed it may send it.
            if let (Some(Caller::Process(process)), b"POST /pay") = (self.caller, &bytes[..read.min(9)]) {
                self.state.leases.check_sent(process);
            }
            sleep(self.random.millis(0, 8)).await;
            self.wait_until_audible().await;
            if read == 0 {
                // The other direction may go on: a half-closed connection.
                let _ = to.shutdown().await;
                return;
            }
            let passes = match self.fate {
                Fate::Arrives => read,
                Fate::Breaks(limit) | Fate::FallsSilent(limit) => read.min(limit - arrived),
            };
            arrived += passes;
            if to.write_all(&bytes[..passes]).await.is_err() {
                broken.cancel();
                return;
            }
            match self.fate {
                Fate::Breaks(_) if passes < read => return broken.cancel(),
                Fate::FallsSilent(_) if passes < read => return std::future::pending().await,
                _ => {}
            }
        }
    }

    /// Bytes that have left arrive although their sender has gone.
    async fn wait_until_audible(&self) {
        let until = self.state.silent_until.lock().unwrap().get(&self.place).copied().unwrap_or(0);
        if let Some(left) = until.checked_sub(now()).filter(|left| *left > 0) {
            sleep(Duration::from_millis(left)).await;
        }
    }
}

/// The network as one process sees it.
#[derive(Debug)]
pub struct ProcessNetwork {
    pub network: Network,
    pub process: usize,
}

impl MemoryNetwork for ProcessNetwork {
    fn connect(&self, _: &Authority) -> Pin<Box<dyn Future<Output = io::Result<DuplexStream>> + Send>> {
        let (network, process) = (self.network.clone(), self.process);
        Box::pin(async move { network.connect(Caller::Process(process), Place::Service).await })
    }
}
