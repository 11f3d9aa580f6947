//! A network link between the store and its server that can lose replies or delay connections at the worst moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::postgres::Database;

/// Forwards everything, unless told to lose replies or hold connections.
pub struct DatabaseLink {
    pub url: String,
    lose: Arc<AtomicU32>,
    open: Arc<watch::Sender<bool>>,
    come: watch::Receiver<u32>,
}

impl DatabaseLink {
    /// A link to the database.
    pub async fn to(database: &Database) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = database.address().to_owned();
        let url = database.at(&listener.local_addr().unwrap().to_string()).url;
        let lose = Arc::new(AtomicU32::new(0));
        let open = Arc::new(watch::Sender::new(true));
        let (count, come) = watch::channel(0);
        let (armed, opened) = (lose.clone(), open.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                count.send_modify(|count| *count += 1);
                let _ = opened.subscribe().wait_for(|open| *open).await;
                let far = TcpStream::connect(&address).await.unwrap();
                tokio::spawn(forward(near, far, armed.clone()));
            }
        });
        Self { url, lose, open, come }
    }

    /// From now on new connections wait.
    pub fn hold_connections(&self) {
        self.open.send_replace(false);
    }

    /// Waits until a connection was attempted since the last wait.
    pub async fn connection_attempted(&mut self) {
        self.come.changed().await.unwrap();
    }

    /// Accepts the waiting connections and all later ones.
    pub fn release_connections(&self) {
        self.open.send_replace(true);
    }

    /// Loses the next `count` replies, each with its connection. The statements have been executed by then.
    pub fn lose_replies(&self, count: u32) {
        self.lose.store(count, Ordering::SeqCst);
    }

    /// The number of replies still to be lost.
    pub fn replies_to_lose(&self) -> u32 {
        self.lose.load(Ordering::SeqCst)
    }
}

async fn forward(near: TcpStream, far: TcpStream, lose: Arc<AtomicU32>) {
    let (mut near_in, mut near_out) = near.into_split();
    let (mut far_in, mut far_out) = far.into_split();
    let asking = tokio::spawn(async move { drop(copy(&mut near_in, &mut far_out).await) });
    let mut answer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = far_in.read(&mut answer).await {
        if lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1)).is_ok() {
            break;
        }
        if near_out.write_all(&answer[..length]).await.is_err() {
            break;
        }
    }
    asking.abort();
}
