//! A network link between the proxy and another server that can be cut or silenced.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Setup, Store, World};

/// Forwards bytes both ways while it is not cut or silenced.
pub struct Relay {
    /// The address to connect to instead of the target.
    pub address: SocketAddr,
    state: Arc<watch::Sender<State>>,
    forgets: Arc<watch::Sender<()>>,
    struck: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Every connection is closed, and each new one too.
    Cut,
    /// No byte is forwarded, and no side is notified.
    Silent,
    /// Each connection delays the bytes to the target by a time of its own: one that is used later may be faster.
    Uneven,
    Whole,
}

/// The delays of uneven connections, in turn.
const DELAYS_MS: [u64; 6] = [0, 100, 5, 150, 20, 60];

/// A proxy whose PostgreSQL is behind a relay and has half a second to answer.
pub async fn remote(more: impl FnOnce(Setup) -> Setup) -> (World, Relay) {
    let store = Store::postgres().await;
    let url = store.url();
    let (user, place) = url.split_once('@').unwrap();
    let (address, database) = place.split_once('/').unwrap();
    let wire = Relay::to(address.parse::<SocketAddr>().unwrap()).await;
    let through = format!("{user}@{}/{database}", wire.address);
    let world = World::with(store, |setup| more(setup.through(&through).store("timeout = \"500ms\""))).await;
    (world, wire)
}

impl Relay {
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (state, forgets) = (Arc::new(watch::Sender::new(State::Whole)), Arc::new(watch::Sender::new(())));
        let (address, kept, struck) = (listener.local_addr().unwrap(), Arc::clone(&forgets), Arc::default());
        let relay = Self { address, state: Arc::clone(&state), forgets, struck: Arc::clone(&struck) };
        tokio::spawn(async move {
            for delay in DELAYS_MS.map(Duration::from_millis).into_iter().cycle() {
                let (near, _) = listener.accept().await.unwrap();
                if *state.borrow() != State::Cut {
                    let until_cut = until_cut(state.subscribe(), Arc::clone(&struck));
                    tokio::spawn(connect(near, target, delay, until_cut, Arc::clone(&state), kept.subscribe()));
                }
            }
        });
        relay
    }

    pub fn cut(&self) {
        self.state.send_replace(State::Cut);
    }

    pub fn silence(&self) {
        self.state.send_replace(State::Silent);
    }

    pub fn make_uneven(&self) {
        self.state.send_replace(State::Uneven);
    }

    /// Reads from the existing connections and forwards nothing, without notifying a side. New connections work.
    pub fn drop_existing(&self) {
        self.forgets.send_replace(());
    }

    pub fn restore(&self) {
        self.state.send_replace(State::Whole);
    }

    /// The number of connections that a cut ended, or that were open while the link was silent or uneven: each counts
    /// once from one [`Self::restore`] to the next. Connections that a cut link refuses do not count.
    pub fn connections_struck(&self) -> usize {
        self.struck.load(Ordering::Relaxed)
    }
}

/// Waits for a cut, and counts the faults that strike a connection until then.
async fn until_cut(mut state: watch::Receiver<State>, struck: Arc<AtomicUsize>) {
    let mut was_whole = true;
    loop {
        let now = *state.borrow_and_update();
        if was_whole && now != State::Whole {
            struck.fetch_add(1, Ordering::Relaxed);
        }
        was_whole = now == State::Whole;
        if now == State::Cut || state.changed().await.is_err() {
            return;
        }
    }
}

async fn connect(
    near: TcpStream,
    target: SocketAddr,
    delay: Duration,
    until_cut: impl Future<Output = ()>,
    state: Arc<watch::Sender<State>>,
    kept: watch::Receiver<()>,
) {
    let both = async {
        // An unreachable target is unreachable through the relay too.
        let Ok(far) = TcpStream::connect(target).await else { return };
        let (near_read, near_write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        tokio::join!(
            forward(near_read, far_write, delay, state.subscribe(), kept.clone()),
            forward(far_read, near_write, Duration::ZERO, state.subscribe(), kept)
        );
    };
    tokio::select! {
        () = both => {}
        () = until_cut => {}
    }
}

async fn forward(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    delay: Duration,
    mut state: watch::Receiver<State>,
    kept: watch::Receiver<()>,
) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        if kept.has_changed().unwrap_or(true) {
            continue;
        }
        if *state.borrow() == State::Uneven {
            sleep(delay).await;
        }
        if state.wait_for(|state| *state != State::Silent).await.is_err() || to.write_all(&piece[..read]).await.is_err()
        {
            break;
        }
    }
    let _ = to.shutdown().await;
}
