//! A wire between the store and its server that can be cut at the worst moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::postgres::Database;

/// Passes everything on, until it is told to lose something.
pub struct Link {
    pub url: String,
    lose: Arc<AtomicU32>,
    open: Arc<watch::Sender<bool>>,
    come: watch::Receiver<u32>,
}

impl Link {
    /// A wire to the database.
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
                tokio::spawn(carry(near, far, armed.clone()));
            }
        });
        Self { url, lose, open, come }
    }

    /// From now on new connections wait at the door.
    pub fn close_the_door(&self) {
        self.open.send_replace(false);
    }

    /// Waits until somebody has come to the door since it was last waited for.
    pub async fn knocked(&mut self) {
        self.come.changed().await.unwrap();
    }

    /// Lets in whoever waits, and everybody else.
    pub fn open_the_door(&self) {
        self.open.send_replace(true);
    }

    /// The next so many answers are lost, and with each its connection. What was asked has been done by then.
    pub fn lose_answers(&self, count: u32) {
        self.lose.store(count, Ordering::SeqCst);
    }

    /// How many answers are still to be lost.
    pub fn to_be_lost(&self) -> u32 {
        self.lose.load(Ordering::SeqCst)
    }
}

async fn carry(near: TcpStream, far: TcpStream, lose: Arc<AtomicU32>) {
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
