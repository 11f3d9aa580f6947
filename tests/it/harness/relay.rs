//! A wire between the proxy and what it talks to that can be cut, or go silent.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{Setup, Store, World};

/// Hands bytes on, both ways, as long as it is whole.
pub struct Relay {
    /// Where to connect instead.
    pub address: SocketAddr,
    state: Arc<watch::Sender<State>>,
    forgets: Arc<watch::Sender<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Every connection is closed, and each new one at once.
    Cut,
    /// Nothing moves, and nobody is told.
    Silent,
    Whole,
}

/// A proxy whose PostgreSQL is at the end of a wire that can be cut, and has half a second to answer.
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
        let (address, kept) = (listener.local_addr().unwrap(), Arc::clone(&forgets));
        let relay = Self { address, state: Arc::clone(&state), forgets };
        tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                tokio::spawn(connect(near, target, Arc::clone(&state), kept.subscribe()));
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

    /// Takes in what comes over the connections that there are, and hands nothing on: nobody is told. New ones are whole.
    pub fn forget(&self) {
        self.forgets.send_replace(());
    }

    pub fn mend(&self) {
        self.state.send_replace(State::Whole);
    }
}

async fn connect(near: TcpStream, target: SocketAddr, state: Arc<watch::Sender<State>>, kept: watch::Receiver<()>) {
    let mut cut = state.subscribe();
    let both = async {
        // Where nobody listens, nobody is reached through it either.
        let Ok(far) = TcpStream::connect(target).await else { return };
        let (near_read, near_write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        tokio::join!(
            hand_on(near_read, far_write, state.subscribe(), kept.clone()),
            hand_on(far_read, near_write, state.subscribe(), kept)
        );
    };
    tokio::select! {
        () = both => {}
        _ = cut.wait_for(|state| *state == State::Cut) => {}
    }
}

async fn hand_on(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut state: watch::Receiver<State>,
    kept: watch::Receiver<()>,
) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        if kept.has_changed().unwrap_or(true) {
            continue;
        }
        if state.wait_for(|state| *state != State::Silent).await.is_err() || to.write_all(&piece[..read]).await.is_err()
        {
            break;
        }
    }
    let _ = to.shutdown().await;
}
