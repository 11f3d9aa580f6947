//! A network link between the store and its server that can lose or stall replies and delay
//! connections at the worst moment.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::postgres::TestDatabase;

/// Forwards everything, unless told to lose replies or hold connections.
pub struct DatabaseLink {
    pub url: String,
    lost: Arc<LostReplies>,
    open: Arc<watch::Sender<bool>>,
    come: watch::Receiver<u32>,
    replies: Arc<Replies>,
    statements: Arc<HeldStatements>,
}

/// The replies that do not arrive.
#[derive(Default)]
struct LostReplies {
    /// The number of those that are still to be lost.
    left: AtomicU32,
    /// What the client gets instead of a reply, before its connection ends.
    instead: Mutex<Vec<u8>>,
}

/// The statements that wait on their way to the server.
struct HeldStatements {
    /// Statements with these words in their text wait for the next hold or release; the number counts both.
    words: watch::Sender<(u32, Option<&'static str>)>,
    /// The number of the last hold that has a statement.
    come: watch::Sender<u32>,
}

/// The sizes of the server's replies, each from one message of the client to the next.
struct Replies {
    largest: AtomicUsize,
    /// From this size on, a reply stalls.
    stall_from: watch::Sender<usize>,
    stalled: watch::Sender<u32>,
}

impl DatabaseLink {
    /// A link to the database.
    pub async fn to(database: &TestDatabase) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = database.address().to_owned();
        let url = database.at(&listener.local_addr().unwrap().to_string()).url;
        let lost = Arc::<LostReplies>::default();
        let open = Arc::new(watch::Sender::new(true));
        let (count, come) = watch::channel(0);
        let (stall_from, stalled) = (watch::Sender::new(usize::MAX), watch::Sender::new(0));
        let replies = Arc::new(Replies { largest: AtomicUsize::new(0), stall_from, stalled });
        let statements = Arc::new(HeldStatements { words: watch::Sender::new((0, None)), come: watch::Sender::new(0) });
        let (armed, opened, sizes, held) = (lost.clone(), open.clone(), replies.clone(), statements.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                count.send_modify(|count| *count += 1);
                let _ = opened.subscribe().wait_for(|open| *open).await;
                let far = TcpStream::connect(&address).await.unwrap();
                tokio::spawn(forward(near, far, armed.clone(), sizes.clone(), held.clone()));
            }
        });
        Self { url, lost, open, come, replies, statements }
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

    /// From now on, statements with these words in their text wait, each with its connection. Those that wait already
    /// are sent.
    pub fn hold_statements(&self, words: &'static str) {
        self.statements.words.send_modify(|(number, held)| (*number, *held) = (*number + 1, Some(words)));
    }

    /// Waits until a statement is held since then.
    pub async fn statement_held(&self) {
        let (number, _) = *self.statements.words.borrow();
        self.statements.come.subscribe().wait_for(|last| *last == number).await.unwrap();
    }

    /// Sends the held statements, and holds no more.
    pub fn release_statements(&self) {
        self.statements.words.send_modify(|(number, held)| (*number, *held) = (*number + 1, None));
    }

    /// Loses the next `count` replies, each with its connection. The statements have been executed by then.
    pub fn lose_replies(&self, count: u32) {
        self.replace_replies(count, Vec::new());
    }

    /// The same, but the client gets this message of the server instead, before the connection ends.
    pub fn replace_replies(&self, count: u32, message: Vec<u8>) {
        *self.lost.instead.lock().unwrap() = message;
        self.lost.left.store(count, Ordering::SeqCst);
    }

    /// The size of the largest reply so far.
    pub fn largest_reply(&self) -> usize {
        self.replies.largest.load(Ordering::SeqCst)
    }

    /// From now on, replies stall once they have so many bytes; `usize::MAX` releases them.
    pub fn stall_replies_from(&self, bytes: usize) {
        self.replies.stalled.send_replace(0);
        self.replies.stall_from.send_replace(bytes);
    }

    /// Waits until a reply has stalled since then.
    pub async fn reply_stalled(&self) {
        self.replies.stalled.subscribe().wait_for(|stalled| *stalled > 0).await.unwrap();
    }

    /// The number of replies still to be lost.
    pub fn replies_to_lose(&self) -> u32 {
        self.lost.left.load(Ordering::SeqCst)
    }
}

impl HeldStatements {
    /// Returns once nothing in the bytes is held.
    async fn pass(&self, bytes: &[u8]) {
        let mut words = self.words.subscribe();
        let (number, held) = *words.borrow_and_update();
        if held.is_some_and(|held| bytes.windows(held.len()).any(|some| some == held.as_bytes())) {
            self.come.send_replace(number);
            let _ = words.changed().await;
        }
    }
}

async fn forward(
    near: TcpStream,
    far: TcpStream,
    lost: Arc<LostReplies>,
    replies: Arc<Replies>,
    statements: Arc<HeldStatements>,
) {
    let (mut near_in, mut near_out) = near.into_split();
    let (mut far_in, mut far_out) = far.into_split();
    let reply_bytes = Arc::new(AtomicUsize::new(0));
    let asking = tokio::spawn({
        let reply_bytes = reply_bytes.clone();
        async move {
            let mut request = vec![0; 1 << 16];
            while let Ok(length @ 1..) = near_in.read(&mut request).await {
                statements.pass(&request[..length]).await;
                reply_bytes.store(0, Ordering::SeqCst);
                if far_out.write_all(&request[..length]).await.is_err() {
                    break;
                }
            }
            let _ = far_out.shutdown().await;
        }
    });
    let mut answer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = far_in.read(&mut answer).await {
        if lost.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1)).is_ok() {
            let message = lost.instead.lock().unwrap().clone();
            let _ = near_out.write_all(&message).await;
            break;
        }
        let size = reply_bytes.fetch_add(length, Ordering::SeqCst) + length;
        replies.largest.fetch_max(size, Ordering::SeqCst);
        let mut stall_from = replies.stall_from.subscribe();
        if size >= *stall_from.borrow() {
            replies.stalled.send_modify(|stalled| *stalled += 1);
        }
        let _ = stall_from.wait_for(|from| size < *from).await;
        if near_out.write_all(&answer[..length]).await.is_err() {
            break;
        }
    }
    asking.abort();
}
